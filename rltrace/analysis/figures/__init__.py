"""What the job achieved and on what: goodput, devices, updates, coverage."""
