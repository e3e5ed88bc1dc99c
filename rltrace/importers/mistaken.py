"""What a log looks like that is none of what it was said to be."""

from __future__ import annotations

from pathlib import Path

from rltrace.importers.frameworks import NAMES, whose
from rltrace.importers.opening import start_of
from rltrace.importers.reading import read_log
from rltrace.trace.errors import RltraceError

_FORMS = (
    ("otlp", "spans of OpenTelemetry", (b'"resourceSpans"',)),
    ("torchtitan", "torchtitan's structured log", (b'"log_type_name"',)),
    ("areal", "AReaL's session traces", (b'"submit_ts"',)),
    ("miles", "miles' phases", (b'"t0"', b'"t1"')),
    ("trl", "transformers' trainer_state.json", (b'"log_history"', b'"global_step"')),
    ("trl", "what TRL prints", (b"{'loss': ", b"'completions/mean_length': ")),
    ("chrome", "a trace in Chrome's format", (b'"ph"', b'"ts"')),
)
"""Importers of logs whose form is their own, and what is in the first lines of such a log."""

_TIMED = ("chrome", "otlp", "torchtitan")
"""Those that read no figures of steps, and so cannot tell whose they are."""


def looks_like(path: Path, framework: str) -> str:
    """What a file looks like, and who reads it, for the end of a sentence; empty where it looks
    like nothing else than what `framework` reads."""
    try:
        start = start_of(path)
    except OSError:
        return ""
    for name, what, marks in _FORMS:
        if all(mark in start for mark in marks):
            return "" if name == framework else f"it looks like {what}: rltrace import {name}"
    if framework not in _TIMED:
        return ""
    try:
        other = whose(read_log(path))
    except RltraceError:
        return ""
    return f"it looks like a log of {NAMES[other]}: rltrace import {other}" if other else ""
