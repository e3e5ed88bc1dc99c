"""Whose log it is, told by its form and its metrics' names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from rltrace.importers.log_reader import read_log
from rltrace.importers.log_records import Log, begins_with
from rltrace.importers.placed_events import Names
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.untrusted_files import packaged_toml


@cache
def schemes() -> dict[str, dict[str, Any]]:
    """Framework -> its table in schemes.toml."""
    return packaged_toml("importers/schemes.toml")


def name_of(framework: str) -> str:
    return str(schemes().get(framework, {}).get("name", framework))


def names_of(framework: str, **more: Any) -> Names:
    """What the spans of its traces are."""
    return Names(schemes()[framework]["spans"], framework, **more)


def whose(log: Log, own: str = "") -> str | None:
    """The framework whose log it is: `own` rather than any other."""
    names = {name for record in log.records for name in record.metrics}
    for framework in (own, *schemes()):
        marks = schemes().get(framework, {}).get("marks")
        if marks and any(re.match(marks, name) for name in names):
            return framework
    return None


def check_framework(log: Log, framework: str) -> None:
    """Errors: `RltraceError` where the log is another framework's."""
    own = schemes()[framework].get("like", framework)
    if (other := whose(log, own) or own) != own:
        said = f"{log.path} looks like a log of {name_of(other)}, not of {name_of(framework)}"
        raise WrongUsage(f"{said}: rltrace import {other}")


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
    """What a file looks like, to end a sentence; empty where `framework` itself may read it."""
    for name, what, marks in _FORMS:
        if begins_with(path, *marks):
            return "" if name == framework else f"it looks like {what}: rltrace import {name}"
    if framework not in _TIMED:
        return ""
    try:
        other = whose(read_log(path))
    except RltraceError:
        return ""
    return f"it looks like a log of {name_of(other)}: rltrace import {other}" if other else ""
