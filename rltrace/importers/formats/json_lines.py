"""Metrics as JSON lines: `{"step": 3, "data": {...}}`, or numbers beside it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rltrace.adapters.log_table import LogRecord, log_tables
from rltrace.importers.log_records import (
    Log,
    check_filled,
    check_many,
    first_of,
    joined,
    number,
    readable,
    split,
)
from rltrace.trace.errors import RltraceError
from rltrace.trace.untrusted_files import read_given

COUNTED = (
    "the log says no step: its records are counted, each as one step (which is too few where it "
    "logs only some of them)"
)
_TIMES = ("time", "timestamp", "_timestamp", "ts")  # of a line, where a logger writes it
_EARLIEST_S, _LATEST_S = 1e9, 1e10  # 2001 and 2286
_OF_ALL = re.compile(r"(\d{1,10})/\d+")
_OBJECT = re.compile(r'\s*\{\s*["}]')  # and no dict that Python printed


def looks_like(start: str) -> bool:
    return _OBJECT.match(start) is not None


def read(lines: Iterable[str]) -> tuple[list[LogRecord], list[str], Counter[str]]:
    """The records, what was skipped, and how often each metric was no finite number. Where none
    says its step they are counted, as far as they have a framework's metrics."""
    records: list[LogRecord] = []
    torn: list[int] = []
    foreign: list[int] = []
    stepless: list[tuple[int, LogRecord]] = []
    not_finite = Counter[str]()
    last = 0
    for at, line in enumerate(lines, 1):
        if not line.strip():
            continue
        last = at
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            torn.append(at)
            continue
        record = _record(found, not_finite)
        if record is not None:
            records.append(record)
            check_many(records)
        elif isinstance(found, dict) and (record := _record({"step": 0, **found}, Counter())):
            stepless.append((at, record))
        else:
            foreign.append(at)
    skipped = []
    marks = [table["marks"] for table in log_tables().values() if "marks" in table]
    names = {name for _, record in stepless for name in record.metrics}
    if not records and any(re.match(mark, name) for name in names for mark in marks):
        records = [replace(record, step=place) for place, (_, record) in enumerate(stepless, 1)]
        skipped.append(COUNTED)
    else:
        foreign = sorted([*foreign, *(at for at, _ in stepless)])
    if torn and torn[-1] == last:
        skipped.append(f"line {torn.pop()}, the last one, is torn")
    if torn:
        skipped.append(f"{_lines(torn)} no JSON")
    if foreign:
        skipped.append(f"{_lines(foreign)} without a step and numbers")
    return records, skipped, not_finite


def unwrapped(line: str) -> str:
    """The text that a launcher or a logger put into JSON with a line each; the line for none."""
    if not line.startswith('{"'):
        return line
    with suppress(ValueError, RecursionError):
        found = json.loads(line)
        texts = (found.get(name) for name in ("log", "message")) if isinstance(found, dict) else ()
        return next((text for text in texts if isinstance(text, str)), line)
    return line


def record_of(line: str) -> tuple[LogRecord, Counter[str]] | None:
    """The record of a line and what in it was no finite number; None where it is none."""
    not_finite = Counter[str]()
    try:
        record = _record(json.loads(line), not_finite)
    except (ValueError, RecursionError):
        return None
    return None if record is None else (record, not_finite)


def _record(found: Any, not_finite: Counter[str]) -> LogRecord | None:
    if not isinstance(found, dict):
        return None
    data = found.get("data", found.get("metrics", found))
    stated = (_step(found.get(name)) for name in _steps())
    step = next((step for step in stated if step is not None), None)
    if step is None or not isinstance(data, dict):
        return None
    real_ns = next((_real_ns(found[name]) for name in _TIMES if name in found), None)
    left_out = {"step", *(name for name in _TIMES if _real_ns(data.get(name)) is not None)}
    values = {name: value for name, value in data.items() if name not in left_out}
    metrics, infinite = split(values.items())
    numbers = (name for name, value in values.items() if type(value) in (int, float))
    not_finite.update(name for name in numbers if name not in metrics)
    return LogRecord(step, metrics, real_ns, not_finite=infinite)


@cache
def _steps() -> tuple[str, ...]:
    """What may state a step's number: `step`, or what a framework calls it."""
    named = [name for table in log_tables().values() for name in table.get("numbers", ())]
    return ("step", "_step", *dict.fromkeys(named))


def _step(value: object) -> int | None:
    """A whole number, or the first of `1/10000`."""
    if isinstance(value, str) and (match := _OF_ALL.fullmatch(value)):
        return int(match[1])
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_history(path: Path, name: str, array: str, sums: Container[str]) -> Log:
    """The entries in an array of a file, but for those with a metric that sums the
    training up. Errors: `RltraceError` for none."""
    with readable(path):
        data = read_given(path)
        changed_ns = path.stat().st_mtime_ns
    check_filled(path, data)
    try:
        state = json.loads(data.decode("utf-8-sig"))
        history = list(state[array])
    except json.JSONDecodeError as error:
        text = error.doc.strip()
        cut = text.startswith("{") and (error.pos >= len(error.doc.rstrip()) or text[-1] != "}")
        why = "it is cut off, its JSON ends early" if cut else "it is no JSON"
        raise RltraceError(f"{path} is no whole {path.name}: {why}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RltraceError(f"{path} is no {path.name}: it has no {array}") from None
    lines = [e for e in history if isinstance(e, dict) and not any(name in sums for name in e)]
    records = [record for line in lines if (record := _record(line, Counter())) is not None]
    skipped = (f"{len(lines) - len(records)} entries without a step",) * (len(records) < len(lines))
    said = {name: str(v) for name, v in state.items() if isinstance(v, int | str)}
    return Log(str(path), name, tuple(joined(records)[0]), skipped, changed_ns, said)


def _real_ns(value: object) -> int | None:
    """A Unix time in seconds as nanoseconds; None for what is none."""
    read = number(value)
    return round(read * 1e9) if read is not None and _EARLIEST_S < read < _LATEST_S else None


def _lines(numbers: list[int]) -> str:
    return f"line{'s' * (len(numbers) > 1)} {first_of(numbers, 3)} {'are' if numbers[1:] else 'is'}"
