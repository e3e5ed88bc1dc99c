"""Logs of finished runs, turned into run directories that every reader of traces takes.

Formats know nothing of frameworks; a framework's file maps its names to stages, with the label map
of its adapter.
"""

from __future__ import annotations

_FIELD = "rltrace.importers.field"

IMPORTERS = {
    "verl": "rltrace.importers.verl:read",
    "openrlhf": "rltrace.importers.openrlhf:read",
    "trl": "rltrace.importers.trl:read",
    "slime": f"{_FIELD}:SLIME",
    "miles": "rltrace.importers.miles:read",
    "relax": f"{_FIELD}:RELAX",
    "nemo-rl": f"{_FIELD}:NEMO_RL",
    "areal": "rltrace.importers.areal:read",
    "roll": f"{_FIELD}:ROLL",
    "rlinf": f"{_FIELD}:RLINF",
    "prime-rl": f"{_FIELD}:PRIME_RL",
    "torchforge": f"{_FIELD}:TORCHFORGE",
    "mindspeed-rl": f"{_FIELD}:MINDSPEED_RL",
    "torchtitan": "rltrace.importers.torchtitan:read",
    "chrome": "rltrace.importers.chrome:read",
    "otlp": "rltrace.importers.otlp:read",
}
"""Framework -> `module:reader`, which makes an `ImportedRun` of a path."""

MAPPED = ("chrome", "otlp")
"""Formats of anybody's traces: their readers take a file that says what the names in them mean."""

NEEDS_MAPPING = ("chrome",)
"""Those of them that cannot do without; what rltrace exported over OTLP says it itself."""
