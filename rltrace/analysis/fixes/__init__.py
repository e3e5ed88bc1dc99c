"""What to change, by which setting of this framework, and what it may gain."""
