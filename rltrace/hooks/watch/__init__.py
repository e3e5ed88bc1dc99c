"""What is seen of a process beside its calls: how it ends, its device's work, where it waits."""
