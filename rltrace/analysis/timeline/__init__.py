"""When each process did what: steps, stages, waiting, the critical path."""
