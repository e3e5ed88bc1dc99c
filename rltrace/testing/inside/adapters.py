"""What tests ask of `rltrace.adapters`."""

from rltrace.testing.inside import finder

__getattr__ = finder(
    "adapters",
    {
        "LABELS": "verl.tables:LABELS",
        "objective": "verl.objective",
        "training": "openrlhf.training",
    },
)
