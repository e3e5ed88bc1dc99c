"""A policy in a device's memory, and copies to and from it."""
