"""Reads a table's segments, torn and foreign ones too.

A segment may be cut anywhere (its process was killed, the disk was full), may still be growing, and
may be anybody's. What is whole is read; a file is never a reason to fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.compact.manifest import Taken
from rltrace.trace.read.segment_batches import (
    Columns,
    CutError,
    NotASegment,
    Place,
    Stream,
    joined,
    values_at,
)
from rltrace.trace.schema import Table
from rltrace.trace.segment import NEW, STREAM
from rltrace.trace.untrusted_files import NO_PLAIN_FILE, open_own, own_files

_Seen = TypeVar("_Seen")


def segments_in(folder: Path, table: Table) -> list[Batches]:
    """What lies in a table's folder, but for files that were never filled."""
    plain, others = own_files(folder)
    found = [Batches(path, table, NO_PLAIN_FILE) for path in others]
    for path in plain:
        if path.suffix == STREAM:
            found.append(Batches(path, table))
        elif path.suffix != NEW:  # else its process was killed before the first row
            found.append(Batches(path, table, "no segment of rltrace: ignored"))
    return found


class SegmentBatch:
    """A record batch of an open file; its first row is at place `first`."""

    def __init__(self, file: int, table: Table, place: Place, first: int) -> None:
        self._file, self._table, self._place = file, table, place
        self.first, self.rows = first, place.rows

    @cached_property
    def markers(self) -> Any:
        """The first column: 0 where no row is stored."""
        return self.column(0)

    @property
    def stored(self) -> NDArray[np.bool_]:
        stored: NDArray[np.bool_] = self.markers != 0
        return stored

    @property
    def stored_rows(self) -> int:
        """How many rows are stored; where the last is, all (threads skip but a few before it)."""
        last = values_at(self._file, self._table, self._place, 0, self.rows - 1, 1)
        return self.rows if last[0] != 0 else int(self.stored.sum())

    def column(self, number: int) -> Any:
        """A column, by number; unknown throughout where the file lacks it."""
        return values_at(self._file, self._table, self._place, number, 0, self.rows)

    def rows_at(self, slots: NDArray[np.int64]) -> Columns:
        if not len(slots):
            return joined(self._table, [])
        first, last = int(slots[0]), int(slots[-1]) + 1
        near = [
            values_at(self._file, self._table, self._place, number, first, last - first)
            for number in range(len(self._place.offsets))
        ]
        return near if last - first == len(slots) else [column[slots - first] for column in near]


class Batches:
    """The record batches of a file; `problem`: what was wrong, once all were gone through."""

    def __init__(self, path: Path, table: Table, problem: str | None = None) -> None:
        self.path, self.table, self.problem = path, table, problem
        self.who = "" if problem else path.name.rsplit(".", 2)[0]
        self._is_none = problem is not None

    def rest(self, taken: Taken | None = None) -> Columns:
        """All stored rows that were not `taken`."""

        def rest(batch: SegmentBatch) -> Columns:
            if taken is None:
                return batch.rows_at(np.flatnonzero(batch.stored))
            if taken.covers(batch.first, batch.rows):
                return joined(self.table, [])
            slots = np.flatnonzero(batch.stored)
            return batch.rows_at(slots[~taken.has(slots + batch.first)])

        return joined(self.table, list(self.each(rest)))

    def each(self, look: Callable[[SegmentBatch], _Seen]) -> Iterator[_Seen]:
        """What `look` makes of each batch."""
        if self._is_none:
            return
        try:
            file, status = open_own(self.path)
        except FileNotFoundError:  # deleted a moment ago
            return
        except OSError as error:
            self.problem = f"cannot be read: {error.strerror}"
            return
        seen: list[SegmentBatch] = []
        try:
            stream = Stream(self.table)
            first = 0
            for place in stream.batches(file, status.st_size):
                batch = SegmentBatch(file, self.table, place, first)
                made = look(batch)
                seen.append(SegmentBatch(file, self.table, place, first))
                yield made
                first += place.rows
            if not stream.end:
                raise CutError("no schema" if status.st_size else "the file is empty")
            if stream.is_cut:
                raise CutError("a message has no end")
        except (OSError, NotASegment, CutError) as error:
            rows = 0
            with suppress(OSError, CutError):
                rows = sum(int(batch.stored.sum()) for batch in seen)
            self.problem = f"cut or damaged after {rows} rows: {error}"
        finally:
            os.close(file)
