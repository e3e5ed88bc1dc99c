"""What any log of metrics is: numbers by step, read from lines."""

from __future__ import annotations

import codecs
import gzip
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from rltrace.adapters.log_table import LogRecord, is_real_ns, whole
from rltrace.trace.errors import RltraceError
from rltrace.trace.read import bounds
from rltrace.trace.untrusted_files import open_given


class JobEnd(NamedTuple):
    """What ended a job ("": nothing is seen), whether somebody asked for it, where to look."""

    why: str = ""
    from_outside: bool = False
    look: str = ""


@dataclass(frozen=True)
class Log:
    """`kind` is its format in words, `skipped` says what could not be read and why, `changed_ns` is
    when its file was last written (Unix ns); `settings` are words of the framework's configuration
    that it happens to show, `framework` whose form its lines have ("" for a form of anybody's),
    `notes` what is to be known of it, `words` those of command lines that it shows, `values`
    option -> value of what it prints, `ended` what ended the job after `done` steps."""

    path: str
    kind: str
    records: tuple[LogRecord, ...]
    skipped: tuple[str, ...] = ()
    changed_ns: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    framework: str = ""
    notes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    ended: JobEnd = field(default_factory=JobEnd)
    done: int = 0

    @property
    def end(self) -> str:
        """How the job ended, in a sentence; empty where it is not seen to have."""
        why, from_outside, look = self.ended
        how = f"was ended from outside ({why})" if from_outside else f"failed ({why})"
        steps = f"{self.done} step{'s' * (self.done != 1)}"
        return f"the job {how} after {steps}{'; ' * bool(look)}{look}" if why else ""


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


def plausible(records: Iterable[LogRecord]) -> tuple[list[LogRecord], list[str]]:
    """The records of steps that a run can have, without odd times; what to say of the others."""
    every = list(records)
    kept = [record for record in every if whole(record.step) is not None]
    for record in kept:
        if record.real_ns is not None and not is_real_ns(record.real_ns):
            record.real_ns = None
    odd = len(every) - len(kept)
    return kept, [f"{odd} record{'s' * (odd > 1)} of steps that no run has"] if odd else []


_BESIDE = 4  # steps: processes log a step's parts at different times


def joined(records: Iterable[LogRecord]) -> tuple[list[LogRecord], int]:
    """The records of a step put together, and how many were mere repetitions.

    A step is logged in parts (validation apart from training, generation by another process); a
    part that brings a metric again with another value is the step itself once more, as after a
    restart.
    """
    steps: list[LogRecord] = []
    repeated = 0
    for record in records:
        beside = (one for one in steps[: -_BESIDE - 1 : -1] if one.step == record.step)
        last = next(beside, None)
        known = {} if last is None else last.metrics
        shared = [name for name in record.metrics if name in known]
        if last is not None and all(known[name] == record.metrics[name] for name in shared):
            repeated += bool(shared) and len(shared) == len(record.metrics)
            known.update(record.metrics)
            last.not_finite.update(record.not_finite)
            last.real_ns = record.real_ns or last.real_ns
        else:
            own = dict(record.metrics), dict(record.not_finite)
            steps.append(replace(record, metrics=own[0], not_finite=own[1]))
    return steps, repeated


_HEAD_BYTES = 4096
_GZIP = b"\x1f\x8b"
_MOST_NAMED = 5

LONGEST_LINE = 1 << 22
"""Characters: a record of a thousand metrics has 50 thousand."""


def too_long(what: str) -> RltraceError:
    return RltraceError(f"the log is too long, {what}: {bounds.RAISED_BY}=4 allows four times that")


def check_many(records: Sized) -> None:
    """Errors: `RltraceError` for more steps than a log may tell of."""
    if len(records) > bounds.MOST_STEPS:
        raise too_long(f"more than {bounds.MOST_STEPS:,} steps")


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
    """Iterates over a text's lines: of a file as many as it has, of what was packed as many as a
    log may have. One that is too long (its number is in `too_long`) comes as an empty line, so that
    all others keep their numbers."""

    def __init__(self, text: TextIO) -> None:
        self._text = text
        packed = isinstance(getattr(text, "buffer", None), gzip.GzipFile)
        self._most = (bounds.MOST_LINES, bounds.MOST_TOTAL_BYTES) if packed else (math.inf,) * 2
        self.too_long: list[int] = []

    def __iter__(self) -> Iterator[str]:
        number = characters = 0
        most_lines, most_characters = self._most
        while line := self._text.readline(LONGEST_LINE):
            number += 1
            characters += len(line)
            if number > most_lines or characters > most_characters:
                raise too_long(f"{number:,} lines of {characters:,} characters")
            if len(line) < LONGEST_LINE or line.endswith("\n"):
                yield line
                continue
            self.too_long.append(number)
            while line and not line.endswith("\n") and characters <= most_characters:
                line = self._text.readline(LONGEST_LINE)
                characters += len(line)
            yield "\n"


@contextmanager
def text_of(path: Path) -> Iterator[TextIO]:
    """A log's text as it was meant: unpacked, in the encoding that it begins with. Errors: OSError,
    EOFError, zlib.error for what is packed and damaged."""
    start = start_of(path)
    packed = start.startswith(_GZIP)
    with open_given(path) as file:
        data: Any = gzip.GzipFile(fileobj=file) if packed else file
        head = data.peek(_HEAD_BYTES)[:_HEAD_BYTES] if packed else start
        yield io.TextIOWrapper(data, encoding=_encoding(head), errors="replace")


def _encoding(start: bytes) -> str:
    """UTF-8, unless it begins as Windows' programs write UTF-16, with a mark or without."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    even, odd = start[::2].count(0), start[1::2].count(0)
    if max(even, odd) > len(start) // 4 and 10 * min(even, odd) < max(even, odd):
        return "utf-16-le" if odd > even else "utf-16-be"
    # A byte-order mark, which programs of Windows put there, is no part of the text.
    return "utf-8-sig"


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
    """Its first bytes. Errors: OSError."""
    with open_given(path) as file:
        return file.read(_HEAD_BYTES)


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
    """Whether it may be the start of a text. A full disk leaves some NULs in one."""
    if start.startswith(_GZIP) or _encoding(start) != "utf-8-sig":
        return True
    return sum(byte < 9 for byte in start) <= start.count(0) <= len(start) // 8


def counted(names: Mapping[str, int]) -> str:
    """Names with how often each occurs: `timing_s/gen (3), timing_s/ref (1)`."""
    shown = [f"{name} ({count})" for name, count in names.items()]
    more = [f"{len(shown) - _MOST_NAMED} more"] * (len(shown) > _MOST_NAMED)
    return ", ".join([*shown[:_MOST_NAMED], *more])


def first_of(values: Sequence[object], most: int = 5) -> str:
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(map(str, values[:most])) + more
