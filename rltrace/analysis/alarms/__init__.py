"""What is wrong with a run: each module here looks for one kind of thing, and registers itself."""
