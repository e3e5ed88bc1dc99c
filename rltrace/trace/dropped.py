"""Details that were dropped to keep a run below its size (`rltrace wrap --max-bytes`).

The agent of a node drops the oldest files of finished segments and writes a line of
`dropped/<node>.jsonl` for each: its rows, their newest time, and what they say of each step, which
is kept for ever. What began before the newest time that was dropped is not whole any more, so no
table shows it: figures are of what came after. What of that time is on the disk still, of another
table or process, is summed when the run is read (`rltrace.trace.hidden`), so that sums and tables
together are all that was recorded. Captured tokens go first, and alone: no figure is of them, so
only they are not shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rltrace.trace.alignment import NodeClock
from rltrace.trace.own_files import own_files, own_lines
from rltrace.trace.run_dir import DROPPED, FETCHED_FILE
from rltrace.trace.schema import CAPTURED_TOKENS, SPANS, USES
from rltrace.trace.stated import is_whole
from rltrace.trace.texts import parsed
from rltrace.trace.vocabulary import Fate, Stage, word

STEP = "step"
"""What a line calls a step itself; other rows of it are those of a stage, or of a sample's fate."""
SUMMED = (SPANS.name, USES.name)
"""The tables of which sums are kept: their rows say which step they are of."""
_MOST = 1 << 62


@dataclass(frozen=True)
class StepTotal:
    """What rows that are not shown said of a step: `rows` of `what` (a stage, "step", or a sample's
    fate), their seconds and tokens summed (each process by itself: what overlaps counts twice), and
    for "step" when it began and ended (Unix ns; -1: unknown)."""

    step: int
    what: str
    rows: int
    seconds: float
    tokens: int
    start_ns: int = -1
    end_ns: int = -1


@dataclass(frozen=True)
class Dropped:
    """`rows` of each table that were dropped, and their `bytes`; what began until `until_ns` (Unix
    ns; -1: nothing but captured tokens was dropped) is not shown. `hidden` are the rows of each
    table that are on the disk and not shown, where they were counted; `steps` are sums of what was
    dropped and of what is hidden, ordered by their number. `tokens_bytes` of the bytes are those of
    captured tokens; of samples that began until `tokens_until_ns` none are shown. `files` are the
    segments, as `<table>/<name>`; `is_shipped`: all of them are at the run's URL."""

    rows: dict[str, int]
    bytes: int
    until_ns: int
    steps: tuple[StepTotal, ...]
    tokens_bytes: int = 0
    tokens_until_ns: int = -1
    files: frozenset[str] = field(default=frozenset(), metadata={"json": False})
    is_shipped: bool = False
    hidden: dict[str, int] = field(default_factory=dict)

    def until_ns_of(self, table: str) -> int:
        """Until when what began is not shown in a table (Unix ns)."""
        if table == CAPTURED_TOKENS.name:
            return max(self.until_ns, self.tokens_until_ns)
        return self.until_ns

    @property
    def step_numbers(self) -> tuple[int, int] | None:
        """The first and the last step whose own row is not shown."""
        numbers = [total.step for total in self.steps if total.what == STEP and total.step >= 0]
        return (min(numbers), max(numbers)) if numbers else None


class StepSums:
    """Adds up what rows say of steps."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, str], StepTotal] = {}

    def add(self, more: StepTotal) -> None:
        """Takes in what some rows say; a step's own begin at the first and end at the last."""
        key = more.step, more.what
        known = self._of.get(key)
        if known is None:
            self._of[key] = more
            return
        starts = [one.start_ns for one in (known, more) if one.start_ns >= 0]
        self._of[key] = StepTotal(
            *key,
            known.rows + more.rows,
            known.seconds + more.seconds,
            known.tokens + more.tokens,
            min(starts, default=-1),
            max(known.end_ns, more.end_ns),
        )

    def totals(self) -> tuple[StepTotal, ...]:
        """The sums, by step; of strangers' numbers no more than a column can hold."""
        return tuple(
            replace(one, rows=_held(one.rows), tokens=_held(one.tokens))
            for _, one in sorted(self._of.items())
            if one.rows
        )


def what_of(table: str, code: int) -> str:
    """How sums call rows of `SUMMED` tables with this code: by their stage or fate."""
    try:
        if table == SPANS.name:
            return STEP if code == Stage.STEP else word(Stage(code))
        return word(Fate(code))
    except ValueError:
        return "unknown"


def dropped_bytes(run: Path) -> dict[str, int]:
    """The files that say what was dropped, with their sizes: they only grow."""
    found = {}
    for path in own_files(run / DROPPED, ".jsonl")[0]:
        with suppress(OSError):
            found[path.name] = path.stat().st_size
    return found


@dataclass(frozen=True)
class DroppedFile:
    """A segment that was dropped, as its line says: what it held, when its newest row began, what
    its rows said of steps, and those themselves (number, beginning, end). Times are on the clock of
    its node."""

    table: str
    name: str
    rows: int
    bytes: int
    until_ns: int
    is_shipped: bool
    totals: list[StepTotal]
    steps: list[tuple[int, int, int]]

    @property
    def path(self) -> str:
        """Where it lay in the run."""
        return f"{self.table}/{self.name}"


def dropped_file(line: str) -> DroppedFile | None:
    """What a line says; None where it cannot be read."""
    try:
        told: dict[str, Any] = {**parsed(line)}
        return DroppedFile(
            str(told.get("table")),
            str(told.get("file")),
            *_whole(*(told[key] for key in ("rows", "bytes", "until_ns"))),
            told.get("shipped") is True,
            [_total(row) for row in told["steps"]],
            [_whole(*row) for row in told["spans"]],
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def read_dropped(run: Path, clocks: Mapping[str, NodeClock]) -> Dropped | None:
    """What was dropped of a run; None where nothing was. Lines that cannot be read are skipped."""
    rows: Counter[str] = Counter()
    size_bytes, until_ns = 0, -1
    tokens_bytes, tokens_until_ns = 0, -1
    files: set[str] = set()
    shipped = 0
    sums = StepSums()
    is_from_url = (run / FETCHED_FILE).exists()
    for path in own_files(run / DROPPED, ".jsonl")[0]:
        clock = clocks.get(path.stem.partition("~")[0])
        for line in own_lines(path):
            told = dropped_file(line)
            if told is None or told.path in files:
                continue  # of a file twice: its agent was killed between the line and the file
            if is_from_url and told.is_shipped:
                continue  # it was dropped on its node, and is here
            files.add(told.path)
            rows[told.table] += told.rows
            size_bytes += told.bytes
            shipped += told.is_shipped
            if told.table == CAPTURED_TOKENS.name:
                tokens_bytes += told.bytes
                tokens_until_ns = max(tokens_until_ns, unix_of(clock, told.until_ns))
            else:
                until_ns = max(until_ns, unix_of(clock, told.until_ns))
            for total in told.totals:
                sums.add(total)
            for step, start_ns, end_ns in told.steps:
                moments = unix_of(clock, start_ns), unix_of(clock, end_ns)
                sums.add(StepTotal(step, STEP, 0, 0.0, 0, *moments))
    if not rows:
        return None
    return Dropped(
        rows=dict(rows),
        bytes=size_bytes,
        until_ns=until_ns,
        steps=sums.totals(),
        tokens_bytes=tokens_bytes,
        tokens_until_ns=tokens_until_ns,
        files=frozenset(files),
        is_shipped=shipped == len(files),
    )


def _total(row: list[Any]) -> StepTotal:
    step, what, rows, seconds, tokens = row
    if not isinstance(what, str) or not isinstance(seconds, (int, float)):
        raise ValueError("no sum of a step")
    if not math.isfinite(seconds):
        raise ValueError("no number of seconds")
    step, rows, tokens = _whole(step, rows, tokens)
    what = what.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair is no text
    return StepTotal(step, what, rows, float(seconds), tokens)


def _whole(*values: Any) -> tuple[int, int, int]:
    """Errors: ValueError unless they are three whole numbers."""
    if not all(map(is_whole, values)):
        raise ValueError("no whole numbers")
    first, second, third = values
    return first, second, third


def _held(value: int) -> int:
    return max(-_MOST, min(value, _MOST))


def unix_of(clock: NodeClock | None, time_ns: int) -> int:
    """A time by the clock of a node as Unix nanoseconds; as it is where that is not known."""
    if clock is None or time_ns <= 0:
        return time_ns
    return int(clock.to_unix(np.array([time_ns], np.int64))[0])
