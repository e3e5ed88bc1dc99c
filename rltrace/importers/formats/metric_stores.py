"""What MLflow and Trackio keep of runs: SQLite, or MLflow's folder of a run.

The runs of one store stand behind each other, the oldest first.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from rltrace.adapters.log_table import LogRecord, ns
from rltrace.importers.log_records import Counted, split
from rltrace.trace.untrusted_files import text_given

METRICS = "metrics"  # MLflow's folder of a run's figures, a file each, and its table; Trackio's
_SQLITE = b"SQLite format 3\0"
_TRACKIO = "SELECT run_name, timestamp, step, metrics FROM metrics ORDER BY id"
_MLFLOW = "SELECT run_uuid, timestamp, step, key, value FROM metrics ORDER BY timestamp"

_Figure = tuple[str, int, int | None, dict[str, Any]]
"""A run's name, a step, when it was logged (Unix ns), and what was."""


def looks_like(start: bytes) -> bool:
    return start.startswith(_SQLITE)


def read_database(path: Path) -> tuple[list[LogRecord], list[str]]:
    """The records of a database, and what was skipped. Errors: `sqlite3.Error`."""
    odd, found, uri = Counted(), list[_Figure](), f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as database:
        names = {row[1] for row in database.execute(f"PRAGMA table_info({METRICS})")}
        query, of = (_MLFLOW, _of_mlflow) if "key" in names else (_TRACKIO, _of_trackio)
        for at, row in enumerate(database.execute(query), 1):
            try:
                found.append(of(row))
            except (ValueError, TypeError, OverflowError, RecursionError):
                odd.add(at)
    return _by_run(found), [f"{odd.count} rows without a step and numbers"] * bool(odd.count)


def _of_mlflow(row: Sequence[Any]) -> _Figure:
    run, time_ms, step, name, value = row
    return str(run), int(step), ns(time_ms, 1e6), {str(name): value}


def _of_trackio(row: Sequence[Any]) -> _Figure:
    run, time, step, metrics = row
    real_ns = ns(datetime.fromisoformat(str(time)).timestamp())
    return str(run), int(step), real_ns, dict(json.loads(metrics))


def read_folder(path: Path) -> tuple[list[LogRecord], list[str]]:
    """As of MLflow's folder: a file a metric, `time value step` a line each. Errors: OSError."""
    found: list[_Figure] = []
    odd = Counted()
    for file in sorted(one for one in (path / METRICS).rglob("*") if one.is_file()):
        name = file.relative_to(path / METRICS).as_posix()
        for at, line in enumerate(text_given(file).splitlines(), 1):
            try:
                time_ms, value, step = line.split()[:3]
                found.append(("", int(step), ns(int(time_ms), 1e6), {name: float(value)}))
            except ValueError:
                odd.add(at)
    return _by_run(found), [f"{odd.count} lines of no time, value and step"] * bool(odd.count)


def _by_run(found: Iterable[_Figure]) -> list[LogRecord]:
    """A record of each step of each run, in the order in which they began."""
    runs: dict[str, dict[int, LogRecord]] = {}
    for run, step, real_ns, values in found:
        record = runs.setdefault(run, {}).setdefault(step, LogRecord(step, {}, real_ns))
        metrics, infinite = split(values.items())
        record.metrics |= metrics
        record.not_finite |= infinite
        record.real_ns = max(record.real_ns or 0, real_ns or 0) or None
    in_order = sorted(runs.values(), key=lambda r: min(x.real_ns or math.inf for x in r.values()))
    return [steps[step] for steps in in_order for step in sorted(steps)]
