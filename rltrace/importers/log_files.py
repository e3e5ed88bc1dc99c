"""Reads a log of metrics in any of the known formats."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

from rltrace.adapters.log_table import LogRecord
from rltrace.importers.formats import console, event_files, json_lines, metric_stores, wandb_files
from rltrace.importers.formats.excerpt import read_excerpt
from rltrace.importers.log_records import (
    LONGEST_LINE,
    Lines,
    Log,
    check_filled,
    counted,
    first_of,
    is_text,
    joined,
    plausible,
    readable,
    start_of,
    text_of,
)
from rltrace.trace.errors import RltraceError, WrongUsage

_START_CHARACTERS = 4096

Settings = Mapping[str, re.Pattern[str]]
"""Name -> pattern whose group 1 is what a framework's configuration says."""

_Read = Callable[[Path, Settings], tuple[list[LogRecord], list[str], dict[str, str]]]
"""Gives the records of a file, what was skipped, and what of the settings was found."""

_Form = tuple[_Read, str, str, str]
_EVENTS: _Form = event_files.read, "TensorBoard events", "event files", "scalars"
_WANDB: _Form = wandb_files.read, "wandb file", "wandb files", "history"


def read_log(path: Path, settings: Settings | None = None, framework: str = "") -> Log:
    """Reads JSON lines, a console log, a TensorBoard event file, wandb's file of a run, or a
    directory of one of the last two. `settings` are what of the configuration to look for,
    `framework` whose form counts where a console log has several. Errors:
    `RltraceError` for a file that is missing, empty or unreadable, and for a directory of several
    experiments."""
    settings = settings or {}
    with readable(path):
        if path.is_dir():
            if (path / metric_stores.METRICS).is_dir():
                return _stored(path, "MLflow's folder", *metric_stores.read_folder(path))
            return _read_directory(path, settings)
        start = start_of(path)
        check_filled(path, start)
        if event_files.looks_like(start, path.name):
            return _in_turn(path, [path], settings, _EVENTS)
        if metric_stores.looks_like(start):
            try:
                return _stored(path, "database", *metric_stores.read_database(path))
            except sqlite3.Error as error:
                said = f"{path} is no database of MLflow's or Trackio's: {error}"
                raise RltraceError(said) from None
        if wandb_files.looks_like(start):
            return _in_turn(path, [path], settings, _WANDB)
        return _read_text(path, start, settings, framework)


def _read_text(path: Path, start: bytes, settings: Settings, framework: str) -> Log:
    if not is_text(start):
        raise RltraceError(
            f"{path} is no log of metrics: give JSON lines, a console log, TensorBoard's events or "
            "wandb's file of a run"
        )
    printed = console.PrintedLog()
    with text_of(path) as text:
        first = text.read(_START_CHARACTERS)
        check_filled(path, first.encode())
    with text_of(path) as text:
        lines = Lines(text)
        line = first.partition("\n")[0]
        is_json = json_lines.looks_like(first) and json_lines.unwrapped(line) == line
        kind = "JSON lines" if is_json else "console log"
        if is_json:
            printed.records, printed.skipped, printed.not_finite = json_lines.read(lines)
        else:
            printed = console.read(lines, settings, framework)
    if not printed.records:
        with text_of(path) as text:
            excerpt = read_excerpt(Lines(text))
        if excerpt.records:
            printed.records, printed.framework, kind = excerpt.records, excerpt.framework, "excerpt"
            printed.notes, printed.not_finite = excerpt.notes, excerpt.not_finite
    skipped = printed.skipped
    if lines.too_long:
        numbers = first_of(lines.too_long, 3)
        skipped.append(f"line {numbers}: longer than {LONGEST_LINE >> 20} MiB")
    if printed.not_finite:
        total = printed.not_finite.total()
        values = f"{total} value{'s' * (total > 1)}"
        skipped.append(f"{values} of no finite number: {counted(printed.not_finite)}")
    records, odd = plausible(printed.records)
    steps, repeated = joined(records)
    skipped += odd
    if repeated:
        skipped.append(f"{repeated} records that repeat the one before")
    shown = printed.settings
    return Log(
        path=str(path), kind=kind, records=tuple(steps), skipped=tuple(skipped),
        changed_ns=path.stat().st_mtime_ns, settings=printed.said, framework=printed.framework,
        notes=tuple(printed.notes), words=tuple(shown.words), values=shown.values,
        ended=printed.ended, done=printed.done,
    )  # fmt: skip


def _stored(path: Path, kind: str, records: list[LogRecord], skipped: list[str]) -> Log:
    records, odd = plausible(records)
    changed_ns = path.stat().st_mtime_ns
    return Log(str(path), kind, tuple(joined(records)[0]), (*skipped, *odd), changed_ns)


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
