"""Whose log it is, told by its form and its metrics' names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rltrace.adapters.log_table import log_tables, name_of
from rltrace.importers.formats import event_files, metric_stores, wandb_files
from rltrace.importers.log_files import read_log
from rltrace.importers.log_records import Log, begins_with
from rltrace.trace.errors import RltraceError, WrongUsage

MAPPED = ("chrome", "otlp")
"""Formats of anybody's traces: their readers take a file that says what the names in them mean."""

_ANYBODY_S = (
    ("otlp", "spans of OpenTelemetry", (b'"resourceSpans"',)),
    ("chrome", "a trace in Chrome's format", (b'"ph"', b'"ts"')),
)


def importers() -> tuple[str, ...]:
    """What `rltrace import` takes: frameworks whose logs can be read, and formats of anybody."""
    return (*log_tables(), *MAPPED)


def whose(log: Log, own: str = "") -> str | None:
    """The framework whose log it is: `own` rather than any other."""
    names = {name for record in log.records for name in record.metrics}
    for framework in (own, *log_tables()):
        marks = log_tables().get(framework, {}).get("marks")
        if marks and any(re.match(marks, name) for name in names):
            return framework
    sure = log.framework in log_tables() and any(
        "step" in entry["begins"] for entry in log_tables()[log.framework].get("console", ())
    )
    return log.framework if sure else None  # a dict without a step may be anybody's


def is_of(log: Log, framework: str) -> bool:
    """Whether a log is surely the framework's."""
    own: str = log_tables()[framework].get("like", framework)
    return whose(log, own) == own


def check_framework(log: Log, framework: str) -> None:
    """Errors: `RltraceError` where the log is another framework's."""
    own = log_tables()[framework].get("like", framework)
    if (other := whose(log, own) or own) != own:
        said = f"{log.path} looks like a log of {name_of(other)}, not of {name_of(framework)}"
        raise WrongUsage(f"{said}: rltrace import {other}")


def forms() -> Iterator[tuple[str, str, tuple[bytes, ...], dict[str, Any]]]:
    """Forms of one importer: its name, what the log is, what it begins with, its table's entry."""
    for framework, table in log_tables().items():
        for entry in table.get("objects", ()):
            mark = entry["mark"].encode()
            yield framework, entry["what"], (mark, b'"ts"') if mark == b'"ph"' else (mark,), entry
        if "history" in table:
            history = table["history"]
            marks = tuple(f'"{key}"'.encode() for key in (history["array"], *history["beside"]))
            yield framework, history["what"], marks, history
    yield from ((name, what, marks, {}) for name, what, marks in _ANYBODY_S)


def holds_log(folder: Path) -> bool:
    """Whether files of a log that rltrace can read lie in a folder."""
    logs = f"*{event_files.MARK}*", f"*{wandb_files.SUFFIX}", f"{metric_stores.METRICS}/*"
    found = any(next(folder.rglob(name), None) is not None for name in logs)
    return found or bool(told_by_files(folder))


def told_by_files(folder: Path) -> str:
    """The framework whose own files lie in a folder; "" for none."""
    for framework, _, marks, entry in forms():
        files = (file for name in entry.get("files", ()) for file in folder.rglob(name))
        if (first := next(files, None)) is not None and begins_with(first, *marks):
            return framework
    return ""


def told_by_form(path: Path) -> str:
    """The importer for a file of a form of its own (events: anybody's); "" for a log of scalars."""
    found = [name for name, _, marks, entry in forms() if begins_with(path, *marks)]
    return found[-1] if found else ""


def looks_like(path: Path, framework: str) -> str:
    """What a file looks like, to end a sentence; empty where `framework` itself may read it."""
    found = [(name, what) for name, what, marks, _ in forms() if begins_with(path, *marks)]
    if found:
        if framework in dict(found):
            return ""
        name, what = found[-1]
        return f"it looks like {what}: rltrace import {name}"
    # Those that read no figures of steps cannot tell whose they are.
    if framework not in MAPPED and "step" in log_tables()[framework]:
        return ""
    try:
        other = whose(read_log(path))
    except RltraceError:
        return ""
    if other in (None, framework):
        return ""
    return f"it looks like a log of {name_of(str(other))}: rltrace import {other}"
