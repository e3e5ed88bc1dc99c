"""A run while it goes on: who does what, the last steps."""
