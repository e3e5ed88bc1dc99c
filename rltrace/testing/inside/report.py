"""What tests ask of `rltrace.report`."""

from rltrace.testing.inside import finder

__getattr__ = finder(
    "report",
    {
        "Column": "layout:Column",
        "bar": "layout:bar",
        "headline": "verdict:headline",
        "serving": "perfetto.serving",
        "to_json": "to_json",
    },
)
