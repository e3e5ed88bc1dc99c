"""What the logs of a framework say beyond its table in schemes.toml."""
