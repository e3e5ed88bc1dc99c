"""Reading a log of metrics in whatever of the known formats it is."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

from rltrace.importers import console, event_files, json_lines
from rltrace.importers.log import Log, Record, joined
from rltrace.trace.errors import WRONG_USAGE, RltraceError


def read_log(path: Path, settings: dict[str, re.Pattern[str]] | None = None) -> Log:
    """Reads JSON lines, a console log, a TensorBoard event file or a directory of those. `settings`
    are patterns of configuration that a console log may show. Errors: `RltraceError` for a file
    that is missing, empty or unreadable, and for a directory of several experiments."""
    try:
        if path.is_dir():
            return _read_directory(path)
        with path.open("rb") as file:
            start = file.read(4096)
        if not start.strip():
            raise RltraceError(f"{path} is empty: there is nothing to import")
        if event_files.looks_like(start):
            return _read_event_files(path, [path])
        return _read_text(path, start, settings or {})
    except FileNotFoundError:
        raise RltraceError(f"{path} does not exist: give the log of a run") from None
    except OSError as error:
        raise RltraceError(f"{path} cannot be read: {error.strerror or error}") from None


def _read_text(path: Path, start: bytes, settings: dict[str, re.Pattern[str]]) -> Log:
    if b"\0" in start:
        raise RltraceError(
            f"{path} is no log of metrics: give JSON lines, a console log or TensorBoard's events"
        )
    said: dict[str, str] = {}
    with path.open(encoding="utf-8", errors="replace") as lines:
        if json_lines.looks_like(start.decode("utf-8", "replace")):
            kind = "JSON lines"
            records, skipped = json_lines.read(lines)
        else:
            kind = "console log"
            records, skipped, said = console.read(lines, settings)
    steps, repeated = joined(records)
    if repeated:
        skipped.append(f"{repeated} records that repeat the one before")
    changed_ns = path.stat().st_mtime_ns
    return Log(str(path), kind, tuple(steps), tuple(skipped), changed_ns, said)


def _read_directory(path: Path) -> Log:
    found = sorted(p for p in path.rglob(f"*{event_files.MARK}*") if p.is_file())
    if not found:
        raise RltraceError(
            f"{path} holds no TensorBoard event file; give the file of another log itself"
        )
    folders = sorted({file.parent for file in found})
    if len(folders) > 1:
        names = ", ".join(os.path.relpath(folder, path) for folder in folders[:5])
        more = f" and {len(folders) - 5} more" if len(folders) > 5 else ""
        raise RltraceError(
            f"{path} holds event files of several experiments: name one of {names}{more}",
            WRONG_USAGE,
        )
    return _read_event_files(path, found)


def _read_event_files(path: Path, files: list[Path]) -> Log:
    """Event files one after another, in the order of their first event: a job that was restarted
    began a new one."""
    parts: list[list[Record]] = []
    skipped: list[str] = []
    for file in files:
        records, missed = event_files.read(file)
        skipped += missed
        if records:
            parts.append(records)
        elif not missed:
            skipped.append(f"{file.name}, which has no scalars")
    parts.sort(key=lambda records: records[0].real_ns or 0)
    if any((a[-1].real_ns or 0) > (b[0].real_ns or 0) for a, b in pairwise(parts)):
        largest = max(parts, key=lambda records: sum(len(r.metrics) for r in records))
        skipped.append(
            f"{len(parts) - 1} event files written at the same time as the largest, which is kept"
        )
        parts = [largest]
    steps, _ = joined(record for records in parts for record in records)
    changed_ns = max((file.stat().st_mtime_ns for file in files), default=0)
    kind = "TensorBoard events"
    return Log(str(path), kind, tuple(steps), tuple(skipped), changed_ns)
