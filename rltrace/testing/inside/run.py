"""What tests ask of `rltrace.run`."""

from rltrace.testing.inside import finder

__getattr__ = finder(
    "run",
    {
        "Change": "change:Change",
        "wrap": "wrap",
    },
)
