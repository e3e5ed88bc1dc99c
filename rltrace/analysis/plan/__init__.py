"""From a workload's shape to a design, before any GPU is rented."""
