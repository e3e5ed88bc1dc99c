"""The parts of the synthetic trace generator: the workload, its timeline, its truth, its files."""
