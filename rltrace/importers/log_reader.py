"""Reads a log of metrics in any of the known formats."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

from rltrace.importers.formats import console, event_files, json_lines, wandb_files
from rltrace.importers.log_numbers import counted, first_of
from rltrace.importers.log_records import (
    LONGEST_LINE,
    Lines,
    Log,
    LogRecord,
    check_filled,
    is_text,
    joined,
    plausible,
    readable,
    start_of,
)
from rltrace.trace.errors import RltraceError, WrongUsage

Settings = Mapping[str, re.Pattern[str]]
"""Name -> pattern whose group 1 is what a framework's configuration says."""

_Read = Callable[[Path, Settings], tuple[list[LogRecord], list[str], dict[str, str]]]
"""Gives the records of a file, what was skipped, and what of the settings was found."""

_Form = tuple[_Read, str, str, str]
_EVENTS: _Form = event_files.read, "TensorBoard events", "event files", "scalars"
_WANDB: _Form = wandb_files.read, "wandb file", "wandb files", "history"


def read_log(path: Path, settings: Settings | None = None) -> Log:
    """Reads JSON lines, a console log, a TensorBoard event file, wandb's file of a run, or a
    directory of one of the last two. `settings` are what of the configuration to look for. Errors:
    `RltraceError` for a file that is missing, empty or unreadable, and for a directory of several
    experiments."""
    settings = settings or {}
    with readable(path):
        if path.is_dir():
            return _read_directory(path, settings)
        start = start_of(path)
        check_filled(path, start)
        if event_files.looks_like(start, path.name):
            return _in_turn(path, [path], settings, _EVENTS)
        if wandb_files.looks_like(start):
            return _in_turn(path, [path], settings, _WANDB)
        return _read_text(path, start, settings)


def _read_text(path: Path, start: bytes, settings: Settings) -> Log:
    if not is_text(start):
        raise RltraceError(
            f"{path} is no log of metrics: give JSON lines, a console log, TensorBoard's events or "
            "wandb's file of a run"
        )
    said: dict[str, str] = {}
    # A byte-order mark, which programs of Windows put there, is no part of the text.
    with path.open(encoding="utf-8-sig", errors="replace") as text:
        lines = Lines(text)
        if json_lines.looks_like(start.decode("utf-8-sig", "replace")):
            kind = "JSON lines"
            records, skipped, not_finite = json_lines.read(lines)
        else:
            kind = "console log"
            records, skipped, not_finite, said = console.read(lines, settings)
    if lines.too_long:
        shown = first_of(lines.too_long, 3)
        skipped.append(f"line {shown}: longer than {LONGEST_LINE >> 20} MiB")
    if not_finite:
        values = f"{not_finite.total()} value{'s' * (not_finite.total() > 1)}"
        skipped.append(f"{values} of no finite number: {counted(not_finite)}")
    records, odd = plausible(records)
    steps, repeated = joined(records)
    skipped += odd
    if repeated:
        skipped.append(f"{repeated} records that repeat the one before")
    changed_ns = path.stat().st_mtime_ns
    return Log(str(path), kind, tuple(steps), tuple(skipped), changed_ns, said)


def _read_directory(path: Path, settings: Settings) -> Log:
    """Event files of one folder, or else wandb's files of one run: one each time it is resumed."""
    events = _files(path, f"*{event_files.MARK}*")
    if events:
        _check_one(path, sorted({file.parent for file in events}), "event files")
        return _in_turn(path, events, settings, _EVENTS)
    runs = _files(path, f"*{wandb_files.SUFFIX}")
    if not runs:
        raise RltraceError(
            f"{path} holds no TensorBoard event file and none of wandb's; give the file of another "
            "log itself"
        )
    first_of_run = {file.name: file for file in reversed(runs)}
    _check_one(path, sorted(first_of_run.values()), "wandb's files")
    return _in_turn(path, runs, settings, _WANDB)


def _files(path: Path, pattern: str) -> list[Path]:
    """Those in a directory and below, each once: wandb links to its latest run."""
    found = [file for file in sorted(path.rglob(pattern)) if file.is_file()]
    return list({file.resolve(): file for file in reversed(found)}.values())[::-1]


def _check_one(path: Path, places: list[Path], what: str) -> None:
    if len(places) > 1:
        names = first_of([os.path.relpath(place, path) for place in places])
        raise WrongUsage(f"{path} holds {what} of several experiments: name one of {names}")


def _in_turn(path: Path, files: list[Path], settings: Settings, form: _Form) -> Log:
    """Files in the order of their first record: a job that was restarted began a new one."""
    read, kind, kinds, holds = form
    parts: list[list[LogRecord]] = []
    skipped: list[str] = []
    said: dict[str, str] = {}
    for file in files:
        found, missed, shown = read(file, settings)
        records, odd = plausible(found)
        missed += odd
        skipped += missed
        said |= shown
        if records:
            parts.append(records)
        elif not missed:
            lacks = f"has no {holds}" if file.stat().st_size else "is empty"
            skipped.append(f"{file.name}, which {lacks}")
    parts.sort(key=lambda records: records[0].real_ns or 0)
    if any((a[-1].real_ns or 0) > (b[0].real_ns or 0) for a, b in pairwise(parts)):
        largest = max(parts, key=lambda records: sum(len(r.metrics) for r in records))
        skipped.append(
            f"{len(parts) - 1} {kinds} written at the same time as the largest, which is kept"
        )
        parts = [largest]
    steps, _ = joined(record for records in parts for record in records)
    changed_ns = max((file.stat().st_mtime_ns for file in files), default=0)
    return Log(str(path), kind, tuple(steps), tuple(skipped), changed_ns, said)
