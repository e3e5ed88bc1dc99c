"""Logs of finished runs, turned into run directories.

Formats know nothing of frameworks; what a framework logs stands in the `log.toml` of its folder in
`rltrace/adapters/`, and in its `log.py` what no table can tell.
"""
