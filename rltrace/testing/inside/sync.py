"""What tests ask of `rltrace.sync`."""

from rltrace.testing.inside import finder

__getattr__ = finder(
    "sync",
    {
        "Held": "shelf:Held",
        "pack": "flat:pack",
        "shared_memory": "place:shared_memory",
    },
)
