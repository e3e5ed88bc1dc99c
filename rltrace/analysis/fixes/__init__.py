"""What to change, by which setting, and what it may gain."""
