"""What tests ask of `rltrace.importers`."""

from rltrace.testing.inside import finder

__getattr__ = finder("importers")
