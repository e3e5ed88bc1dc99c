"""What tests ask of `rltrace.trace`."""

from rltrace.testing.inside import finder

__getattr__ = finder(
    "trace",
    {
        "TABLES": "schema:TABLES",
        "monotonic_ns": "clock:monotonic_ns",
    },
)
