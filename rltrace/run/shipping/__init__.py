"""What a node recorded, brought to the run's URL."""
