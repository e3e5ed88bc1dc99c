"""A policy in this host's memory: slots, their layout, and the bytes in them."""
