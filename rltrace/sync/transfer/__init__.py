"""Versions on their way between hosts: relays, connections, blocks."""
