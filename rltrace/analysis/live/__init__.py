"""A run while it is going on: what each part is doing, and the figures of the last steps."""
