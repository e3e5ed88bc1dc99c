"""What would happen if: a job is replayed with one thing changed."""
