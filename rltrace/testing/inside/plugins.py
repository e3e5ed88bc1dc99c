"""What tests ask of `rltrace.plugins`."""

from rltrace.testing.inside import finder

__getattr__ = finder("plugins")
