"""What tests ask of `rltrace.trainer`."""

from rltrace.testing.inside import finder

__getattr__ = finder("trainer")
