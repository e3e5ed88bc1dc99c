"""What the segments of a table hold, found without keeping a row: how many, and when they began.

Also which of them can be compacted, where the job goes on. One pass over two columns.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.follow import SETTLED_NS
from rltrace.trace.manifest import Taken
from rltrace.trace.schema import Table
from rltrace.trace.segments import Batch, Batches, segments_in
from rltrace.trace.stream import Columns
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from rltrace.trace.files import RunFiles

Ints = NDArray[np.int64]
_Seen = tuple[int, NDArray[np.bool_], Ints, Ints]
"""Of a batch: the place of its first row, which are stored, and when each began and ended."""

_ONE_OF = 256  # rows, the start of one is kept, to say where a part of so many rows ends
_MOST_LEFT = 1_000
_STEP_COLUMNS = ("step", "start_ns", "end_ns")
_NO_TIMES, _NO_STEPS = np.empty(0, np.int64), np.empty((0, 4), np.int64)


@dataclass
class Survey:
    """The segments of a table and how many rows are to be taken from them; what is taken of each
    file, of those without a row too (torn in their first batch, say); the starts of one row in
    `_ONE_OF`, in order; and of spans the rows of steps, `(step, start_ns, end_ns, process)`."""

    segments: list[Surveyed] = field(default_factory=list)
    taken: dict[str, Taken] = field(default_factory=dict)
    rows: int = 0
    sampled_ns: Ints = field(default_factory=lambda: _NO_TIMES)
    steps: Ints = field(default_factory=lambda: _NO_STEPS)


def survey(files: RunFiles, table: Table, ended: bool) -> Survey:
    """Looks through a table. Where the run has not `ended` only rows that have are taken."""
    found = Survey()
    for batches in segments_in(files.path / table.name, table):
        if files.is_stray(table.name, batches.path):
            continue
        one = Surveyed(files, table, batches, ended, found)
        if batches.problem is not None:
            files.problem("torn-file", f"{table.name}/{batches.path.name}", batches.problem)
        found.taken[batches.path.name] = one.taken
        if one.taken.slots:
            found.segments.append(one)
            found.rows += one.rows
    if found.segments:
        found.sampled_ns = np.sort(np.concatenate([one.sampled_ns for one in found.segments]))
        steps = np.concatenate([one.steps for one in found.segments])
        found.steps = steps[np.argsort(steps[:, 1], kind="stable")]
    return found


class Surveyed:
    """A segment: which rows are to be `taken`, how many these are, when those of each of its
    batches began (Unix ns, the first and the last), the starts of one row in `_ONE_OF`, and of
    spans the rows of steps. `before` is what was found in the segments before it."""

    def __init__(
        self, files: RunFiles, table: Table, batches: Batches, ended: bool, before: Survey
    ) -> None:
        self.batches, self._table, self._files = batches, table, files
        self._end = -1 if ended else table.find("end_ns")
        self._stage = table.find("stage")
        size_bytes = 0  # before its rows are looked at: what comes meanwhile is a rest
        with suppress(OSError):
            size_bytes = batches.path.lstat().st_size
        seen = list(batches.each(self._look))
        self.taken = self._taken(seen, size_bytes, ended)
        self.rows, sampled = 0, [_NO_TIMES]
        bounds: list[tuple[int, int]] = []
        for first, stored, start, _ in seen:
            slots = np.flatnonzero(stored)
            unix = self._unix(start[slots[self.taken.has(slots + first)]])
            bounds.append((int(unix.min()), int(unix.max())) if len(unix) else (0, -1))
            sampled.append(unix[-(before.rows + self.rows) % _ONE_OF :: _ONE_OF])
            self.rows += len(unix)
        self.first_ns, self.last_ns = np.array(bounds, np.int64).reshape(-1, 2).T
        self.sampled_ns = np.concatenate(sampled)
        self.steps = self._step_rows() if self._stage >= 0 and self.rows else _NO_STEPS

    def _taken(self, seen: list[_Seen], size_bytes: int, ended: bool) -> Taken:
        """Which rows are: all that are stored where nobody writes any more, else those that have
        ended, with so few left behind that they can be listed."""
        places, left = 0, list[int]()
        newest_ns = max((int(max(a.max(), b.max())) for _, _, a, b in seen if len(a)), default=0)
        for first, stored, _, _ in seen:
            if stored.any():
                last = len(stored) if ended else int(np.flatnonzero(stored)[-1]) + 1
                places = first + last
        if ended:
            return Taken(places, (), size_bytes)
        for first, stored, start, end in seen:
            there = stored & (end != -1)
            if end is not start:
                there &= end < newest_ns - SETTLED_NS
            open_ = first + np.flatnonzero(~there)
            left += open_[open_ < places].tolist()
        if len(left) > _MOST_LEFT:
            places = left[_MOST_LEFT]
        return Taken(places, tuple(left[:_MOST_LEFT]), size_bytes)

    def _look(self, batch: Batch) -> _Seen:
        start = batch.markers
        end = start if self._end < 0 else batch.column(self._end)
        return batch.first, batch.stored, start, end

    def _unix(self, times_ns: Ints) -> Ints:
        node = self._files.processes[self._files.number_of(self.batches.who)].node
        clock = self._files.clocks.get(node)
        return times_ns if clock is None else clock.to_unix(times_ns)

    def _step_rows(self) -> Ints:
        """Of the rows that are taken those of steps."""

        def of_steps(batch: Batch) -> Columns:
            slots = taken_slots(batch, self.taken)
            return batch.rows_at(slots[batch.column(self._stage)[slots] == int(Stage.STEP)])

        rows = [_NO_STEPS]
        number = self._files.number_of(self.batches.who)
        for columns in self.batches.each(of_steps):
            named = dict(zip([c.name for c in self._table.columns], columns, strict=True))
            times = [self._unix(named[name]) for name in _STEP_COLUMNS[1:]]
            of_whom = np.full(len(times[0]), number, np.int64)
            rows.append(np.stack([named["step"].astype(np.int64), *times, of_whom], axis=1))
        return np.concatenate(rows)


def taken_slots(batch: Batch, taken: Taken) -> Ints:
    """Places in a batch of the rows that are taken."""
    slots = np.flatnonzero(batch.stored)
    return slots[taken.has(slots + batch.first)]


# --- where a table is cut into parts: where steps begin, so that each part has about so many rows


def cuts(sampled_ns: Ints, rows: int, starts_ns: Ints, part_rows: int) -> list[int]:
    """The moments at which a part ends and another begins. `sampled_ns` are starts of rows, evenly
    drawn, in order; `starts_ns` are those of steps, in order. A part of more rows than one step has
    ends where a step begins; where a step has more than a part may, it is cut within."""
    found: list[int] = []
    if rows <= part_rows or not len(sampled_ns):
        return found
    each = max(1, round(part_rows * len(sampled_ns) / rows))
    at = 0
    while at + each < len(sampled_ns):
        since, latest = int(sampled_ns[at]), int(sampled_ns[at + each])
        place = int(np.searchsorted(starts_ns, latest, side="right")) - 1
        cut = int(starts_ns[place]) if place >= 0 else latest
        if cut <= since or (found and cut <= found[-1]):
            cut = latest
        reached = int(np.searchsorted(sampled_ns, cut, side="left"))
        if reached <= at:  # all at one moment, which nothing cuts
            reached = int(np.searchsorted(sampled_ns, latest, side="right"))
            if reached >= len(sampled_ns):
                break
            cut = int(sampled_ns[reached])
        found.append(cut)
        at = reached
    return found
