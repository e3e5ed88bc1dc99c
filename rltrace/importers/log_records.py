"""What any log of metrics is: numbers by step, read from lines."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from rltrace.importers.log_numbers import is_real_ns, whole
from rltrace.trace.errors import RltraceError
from rltrace.trace.untrusted_files import open_given


@dataclass
class LogRecord:
    """Numbers that were logged for one step. `real_ns` is when (Unix ns), None where the log does
    not say. `metrics` are finite; NaN and infinity stand apart. `steps` is over how many steps, up
    to this one, the numbers are means."""

    step: int
    metrics: dict[str, float]
    real_ns: int | None = None
    not_finite: dict[str, float] = field(default_factory=dict, compare=False)
    steps: int = 1

    @property
    def readings(self) -> dict[str, float]:
        return {**self.metrics, **self.not_finite}


@dataclass(frozen=True)
class Log:
    """`kind` is its format in words, `skipped` says what could not be read and why, `changed_ns` is
    when its file was last written (Unix ns); `settings` are words of the framework's configuration
    that it happens to show."""

    path: str
    kind: str
    records: tuple[LogRecord, ...]
    skipped: tuple[str, ...] = ()
    changed_ns: int = 0
    settings: dict[str, str] = field(default_factory=dict)


def number(value: object) -> float | None:
    """The value as a number; None for anything else, and for NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) else None


def no_number(value: object) -> float | None:
    """The value where it is NaN or infinite, be it a text that says so; else None."""
    if isinstance(value, str) and value.strip().lstrip("+-").lower() in {"nan", "inf", "infinity"}:
        value = float(value)
    return value if isinstance(value, float) and not math.isfinite(value) else None


def split(values: Iterable[tuple[str, object]]) -> tuple[dict[str, float], dict[str, float]]:
    """What of named values is a number, and what is NaN or infinite."""
    metrics, not_finite = dict[str, float](), dict[str, float]()
    for name, value in values:
        if (finite := number(value)) is not None:
            metrics[name] = finite
        if (none := no_number(value)) is not None:
            not_finite[name] = none
    return metrics, not_finite


def shown_number(shown: str) -> float | None:
    try:
        return float(shown)
    except ValueError:
        return None


def plausible(records: Iterable[LogRecord]) -> tuple[list[LogRecord], list[str]]:
    """The records of steps that a run can have, without odd times; what to say of the others."""
    every = list(records)
    kept = [record for record in every if whole(record.step) is not None]
    for record in kept:
        if record.real_ns is not None and not is_real_ns(record.real_ns):
            record.real_ns = None
    odd = len(every) - len(kept)
    return kept, [f"{odd} record{'s' * (odd > 1)} of steps that no run has"] if odd else []


def joined(records: Iterable[LogRecord]) -> tuple[list[LogRecord], int]:
    """Neighbouring records of one step put together, and how many were mere repetitions.

    A step is logged in parts (validation apart from training); a part that brings a metric again
    with another value is the step itself once more, as after a restart.
    """
    steps: list[LogRecord] = []
    repeated = 0
    for record in records:
        last = steps[-1] if steps and steps[-1].step == record.step else None
        known = {} if last is None else last.metrics
        shared = [name for name in record.metrics if name in known]
        if last is not None and all(known[name] == record.metrics[name] for name in shared):
            repeated += bool(shared) and len(shared) == len(record.metrics)
            known.update(record.metrics)
            last.not_finite.update(record.not_finite)
        else:
            own = dict(record.metrics), dict(record.not_finite)
            steps.append(replace(record, metrics=own[0], not_finite=own[1]))
    return steps, repeated


LONGEST_LINE = 1 << 22
"""Characters: a record of a thousand metrics has 50 thousand."""


@dataclass
class Counted:
    count: int = 0
    first: int = 0

    def add(self, number: int) -> None:
        self.first = self.first if self.count else number
        self.count += 1

    def __str__(self) -> str:
        if self.count == 1:
            return f"line {self.first}"
        return f"{self.count} lines (the first is line {self.first})"


class Lines:
    """Iterates over a text's lines. One that is too long (its number is in `too_long`) comes as an
    empty line, so that all others keep their numbers."""

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self.too_long: list[int] = []

    def __iter__(self) -> Iterator[str]:
        number = 0
        while line := self._text.readline(LONGEST_LINE):
            number += 1
            if len(line) < LONGEST_LINE or line.endswith("\n"):
                yield line
                continue
            self.too_long.append(number)
            while line and not line.endswith("\n"):
                line = self._text.readline(LONGEST_LINE)
            yield "\n"


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Within it, an OSError becomes the `RltraceError` that says why a log cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise RltraceError(f"{path} does not exist: give the log of a run") from None
    except OSError as error:
        raise RltraceError(f"{path} cannot be read: {error.strerror or error}") from None


def check_filled(path: Path, start: bytes) -> None:
    """Errors: `RltraceError` for a log that begins with these bytes, where they are none."""
    text = start.removeprefix(codecs.BOM_UTF8)
    if not text or text.isspace():
        raise RltraceError(f"{path} is empty: there is nothing to import")


def start_of(path: Path) -> bytes:
    """Errors: OSError."""
    with open_given(path) as file:
        return file.read(4096)


def files_of(path: Path, mark: bytes, *patterns: str) -> list[Path]:
    """Those of a folder with such names, or else the file itself if it begins with the mark."""
    if path.is_dir():
        return sorted(file for pattern in patterns for file in path.rglob(pattern))
    return [path] if begins_with(path, mark) else []


def begins_with(path: Path, *marks: bytes) -> bool:
    """Whether all of these are in a file's first bytes; not where it cannot be read."""
    try:
        start = start_of(path)
    except OSError:
        return False
    return all(mark in start for mark in marks)


class Torn(Exception):
    """A file of records ends within one, or is damaged there: where, in words."""


def is_text(start: bytes) -> bool:
    return b"\0" not in start
