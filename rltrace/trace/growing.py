"""One segment that is still being written: what has been stored in it since the last look.

A row is first there (its marker is set), and for an interval complete only later, in place. So a
reader has to come back for the rows that were not complete, and only for those: everything else is
read once. A segment is read with `pread`, by its path, at each look: a map would be a SIGBUS where
a file is cut, would hold a descriptor of each of hundreds of files, and is not refreshed on NFS.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.arrow_layout import NotASegment
from rltrace.trace.own_files import open_own
from rltrace.trace.schema import Table
from rltrace.trace.stream import Columns, CutError, Place, Stream, dtype, joined, unknown, values_at

_Slots = NDArray[np.int64]

_LOOK_AHEAD = 64  # slots that are looked at beyond the last one known to be stored
_HOLES_S = 60.0  # once all slots are claimed, one that is still not stored is given up after this
_TOGETHER = 512  # rows this near each other are read in one go
SETTLED_NS = 10**9
"""An interval's other columns are stored with its end, in the same few statements. What ended this
long before the newest row of its process is complete; the rest is, once two looks saw it ended."""


class GrowingSegment:
    """Follows the file at `path`. `problem` is why it cannot be followed (further), or None;
    `unfinished` are the rows that were begun and are not known to be complete; `given` is how many
    were given out as complete."""

    def __init__(self, path: Path, table: Table) -> None:
        self.path = path
        self.table = table
        self.who = path.name.rsplit(".", 2)[0]
        self.problem: str | None = None
        self.given = 0
        self._stream = Stream(table)
        self._batches: list[_Batch] = []
        self._newest = _Newest()

    @property
    def unfinished(self) -> Columns:
        """Their values as of the last look; `end_ns` is -1, or when it was seen to have ended."""
        return joined(self.table, [batch.unfinished for batch in self._batches])

    def poll(self, final: bool = False) -> Columns:
        """The rows that became complete since the last look. `final`: nobody writes any more, so
        what has ended is complete. A file that is gone, or was cut, has nothing new."""
        if self.problem is not None:
            return joined(self.table, [])
        try:
            file, status = open_own(self.path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self.problem = f"cannot be read: {error.strerror}"
            return joined(self.table, [])
        try:
            if status.st_size < self._stream.end:
                raise CutError("it became shorter")
            for place in self._stream.batches(file, status.st_size):
                self._batches.append(_Batch(self.table, place, self._newest))
            found = [
                batch.poll(file, batch is not self._batches[-1], final) for batch in self._batches
            ]
            last = self._batches[-1:]
            self._batches = [b for b in self._batches if not b.is_read or b in last]
            complete = joined(self.table, found)
            self.given += len(complete[0])
            return complete
        except (NotASegment, CutError, OSError) as error:
            self.problem = f"cannot be followed: {error}"
            return joined(self.table, [])
        finally:
            os.close(file)


class _Newest:
    """The newest moment in a segment, by the clock of its process."""

    at_ns = 0


class _Batch:
    """A record batch in a file: which of its rows have been read."""

    def __init__(self, table: Table, place: Place, newest: _Newest) -> None:
        self._table = table
        self._place = place
        self._rows = place.rows
        self._newest = newest
        self._end = table.find("end_ns")
        if self._end >= 0 and place.offsets[self._end] < 0:
            self._end = -1
        self._full_at = math.inf
        self._next = 0  # all slots before it are read, open, or holes
        self._holes = self._open = np.empty(0, np.int64)
        self._seen_ended = np.empty(0, np.bool_)
        self.unfinished = joined(table, [])

    @property
    def is_read(self) -> bool:
        """Whether nothing of it will change any more."""
        return self._next == self._rows and not len(self._open) and not len(self._holes)

    def poll(self, file: int, full: bool, final: bool) -> Columns:
        """The rows that became complete. `full`: there is a batch after this one."""
        if full and self._full_at == math.inf:
            self._full_at = time.monotonic()
        begun = self._begun(file, full, final)
        if self._end < 0:
            rows = self._read(file, begun)
            self._note(rows[0])
            return rows
        slots = np.concatenate([self._open, begun])
        if not len(slots):
            return joined(self._table, [])
        rows = self._read(file, slots)
        start, end = rows[0], rows[self._end]
        self._note(start, end)
        there, ended = start != 0, end != -1  # a span that was taken back is there no more
        complete = ended & (end < self._newest.at_ns - SETTLED_NS)
        complete[: len(self._open)] |= ended[: len(self._open)] & self._seen_ended
        complete = there & (ended if final else complete)
        rest = there & ~complete
        self._open, self._seen_ended = slots[rest], ended[rest]
        self.unfinished = [column[rest] for column in rows]
        return [column[complete] for column in rows]

    def _begun(self, file: int, full: bool, final: bool) -> _Slots:
        """Slots that were stored since the last look. A slot is claimed before it is stored, and a
        thread may be held up in between, so there may be holes, which are looked at again."""
        to_the_end = full or final
        again = self._gather(file, 0, self._holes) != 0
        found = [self._holes[again]]
        holes = [self._holes[~again]]
        if full and time.monotonic() - self._full_at > _HOLES_S:
            holes = []
        while self._next < self._rows:
            count = min(_LOOK_AHEAD, self._rows - self._next)
            if to_the_end:
                count = self._rows - self._next
            stored = values_at(file, self._table, self._place, 0, self._next, count) != 0
            if not to_the_end:
                stored = stored[: int(np.flatnonzero(stored)[-1]) + 1 if stored.any() else 0]
            slots = np.arange(self._next, self._next + len(stored))
            found.append(slots[stored])
            holes.append(slots[~stored])
            self._next += len(stored)
            if not len(stored):
                break
        self._holes = np.concatenate(holes) if holes else self._holes[:0]
        return np.concatenate(found)

    def _note(self, *times: NDArray[Any]) -> None:
        for column in times:
            self._newest.at_ns = max(self._newest.at_ns, int(column.max(initial=0)))

    def _read(self, file: int, slots: _Slots) -> Columns:
        return [self._gather(file, i, slots) for i in range(len(self._place.offsets))]

    def _gather(self, file: int, column: int, slots: _Slots) -> NDArray[Any]:
        """Values of a column; slots that are near each other are read together."""
        if not len(slots) or self._place.offsets[column] < 0:
            return unknown(self._table, column, len(slots))
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        cuts = np.flatnonzero(np.diff(ordered) > _TOGETHER) + 1
        values = np.empty(len(slots), dtype(self._table, column))
        every = np.arange(len(slots))
        for part in np.split(every, cuts) if len(cuts) else [every]:
            first, last = int(ordered[part[0]]), int(ordered[part[-1]])
            near = values_at(file, self._table, self._place, column, first, last - first + 1)
            values[order[part]] = near[ordered[part] - first]
        return values
