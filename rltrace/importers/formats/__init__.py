"""Formats of logs and traces, whoever writes them."""
