"""What tests ask of `rltrace.hooks`."""

from rltrace.testing.inside import finder

__getattr__ = finder(
    "hooks",
    {
        "RUN_VARIABLE": "boot:RUN_VARIABLE",
        "start": "capturing:start",
    },
)
