"""Metrics as JSON lines: `{"step": 3, "data": {...}}`, or numbers beside it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rltrace.importers.log_numbers import first_of
from rltrace.importers.log_records import LogRecord, number, split

_TIMES = ("time", "timestamp", "_timestamp", "ts")  # of a line, where a logger writes it
_EARLIEST_S, _LATEST_S = 1e9, 1e10  # 2001 and 2286
_OBJECT = re.compile(r'\s*\{\s*["}]')  # and no dict that Python printed


def looks_like(start: str) -> bool:
    return _OBJECT.match(start) is not None


def is_step(line: str) -> bool:
    return '"step"' in line and looks_like(line)


def read(lines: Iterable[str]) -> tuple[list[LogRecord], list[str], Counter[str]]:
    """The records, what was skipped, and how often each metric was no finite number."""
    records: list[LogRecord] = []
    torn: list[int] = []
    foreign: list[int] = []
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
        if record is None:
            foreign.append(at)
        else:
            records.append(record)
    skipped = []
    if torn and torn[-1] == last:
        skipped.append(f"line {torn.pop()}, the last one, is torn")
    if torn:
        skipped.append(f"{_lines(torn)} no JSON")
    if foreign:
        skipped.append(f"{_lines(foreign)} without a step and numbers")
    return records, skipped, not_finite


def _record(found: Any, not_finite: Counter[str]) -> LogRecord | None:
    if not isinstance(found, dict):
        return None
    step, data = found.get("step"), found.get("data", found.get("metrics", found))
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if not isinstance(step, int) or isinstance(step, bool) or not isinstance(data, dict):
        return None
    real_ns = next((_real_ns(found[name]) for name in _TIMES if name in found), None)
    values = {
        name: value
        for name, value in data.items()
        if name != "step" and not (name in _TIMES and _real_ns(value) is not None)
    }
    metrics, infinite = split(values.items())
    numbers = (name for name, value in values.items() if type(value) in (int, float))
    not_finite.update(name for name in numbers if name not in metrics)
    return LogRecord(step, metrics, real_ns, not_finite=infinite)


def _real_ns(value: object) -> int | None:
    """A Unix time in seconds as nanoseconds; None for what is none."""
    read = number(value)
    return round(read * 1e9) if read is not None and _EARLIEST_S < read < _LATEST_S else None


def _lines(numbers: list[int]) -> str:
    return f"line{'s' * (len(numbers) > 1)} {first_of(numbers, 3)} {'are' if numbers[1:] else 'is'}"
