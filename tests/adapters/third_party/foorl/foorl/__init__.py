"""A framework that nobody has heard of: a timer, a logger, an engine and a loop."""
