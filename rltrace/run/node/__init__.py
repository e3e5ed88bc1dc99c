"""The agent of a node, and what it measures there."""
