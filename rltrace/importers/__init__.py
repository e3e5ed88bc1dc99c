"""Logs of finished runs, turned into run directories.

Formats know nothing of frameworks; what a framework logs stands in schemes.toml, and in a module of
its own what no table can tell.
"""

from __future__ import annotations

IMPORTERS = {
    "verl": "rltrace.importers.frameworks.verl:VERL",
    "openrlhf": "rltrace.importers.frameworks.openrlhf:OPENRLHF",
    "trl": "rltrace.importers.frameworks.trl:read",
    "slime": "",
    "miles": "rltrace.importers.frameworks.miles:read",
    "relax": "",
    "nemo-rl": "",
    "areal": "rltrace.importers.frameworks.areal:read",
    "roll": "",
    "rlinf": "",
    "prime-rl": "",
    "torchforge": "",
    "mindspeed-rl": "",
    "torchtitan": "rltrace.importers.frameworks.torchtitan:read",
    "chrome": "rltrace.importers.formats.chrome:read",
    "otlp": "rltrace.importers.formats.otlp:read",
}
"""Framework -> `module:reader`, which makes an `ImportedRun` of a path; empty where its table in
schemes.toml says all."""

MAPPED = ("chrome", "otlp")
"""Formats of anybody's traces: their readers take a file that says what the names in them mean."""

NEEDS_MAPPING = ("chrome",)
"""Those of them that cannot do without; what rltrace exported over OTLP says it itself."""
