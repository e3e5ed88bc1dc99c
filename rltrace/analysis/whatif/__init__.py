"""What would happen if: a replay of a run, or of stated stage seconds, with one thing changed."""
