"""A policy in this host's memory: slots, layout, bytes."""
