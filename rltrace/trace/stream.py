"""The batches of one segment's file: where the columns of a table lie in it, without their values.

What a file says of itself is held against how long it is and against the table before a row of it
is read, so that no length in it leads beyond its end, or to memory that it does not fill.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace import arrow_layout
from rltrace.trace.arrow_header import PREFIX_BYTES, RECORD_BATCH, SCHEMA
from rltrace.trace.schema import WIDTH_BYTES, Table

MOST_SEGMENT_BYTES = 1 << 30
"""Of a segment's file; the writer begins another after 64 MiB."""

MOST_BATCH_ROWS = 1 << 22
"""Of a batch, which the writer gives 8,192 at most: a hole in a file is as many rows as one likes,
at no cost to who made it."""

Columns = list[NDArray[Any]]
"""A numpy array for each column of the table."""


class CutError(Exception):
    """The file is shorter than it was, or than what it says of itself."""


@dataclass(frozen=True)
class Place:
    """A batch of `rows` rows; where in the file each column of the table begins, -1 for one that
    an older writer did not have."""

    rows: int
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class _Message:
    """The head of a message, understood; `offsets` are within the body, and empty of a schema."""

    metadata: bytes
    body_bytes: int
    rows: int = 0
    offsets: tuple[int, ...] = ()


class Stream:
    """The file of a segment of `table`, as far as it was read: `end` is where that is, and `is_cut`
    whether a message began there at the last look that is not whole."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.end = 0
        self.is_cut = False
        self._kinds: tuple[tuple[str, str], ...] = ()
        self._columns: list[int] | None = None
        self._message = _Message(b"", 0)

    def batches(self, file: int, size: int) -> Iterator[Place]:
        """The batches that are whole in the `size` bytes which the file has by now, and were not
        before. Errors: `NotASegment`, OSError."""
        if size > MOST_SEGMENT_BYTES:
            raise arrow_layout.NotASegment(f"larger than {MOST_SEGMENT_BYTES >> 30} GiB")
        while True:
            prefix = os.pread(file, min(PREFIX_BYTES, size - self.end), self.end)
            if len(prefix) < PREFIX_BYTES:
                self.is_cut = bool(prefix.strip(b"\0"))
                return
            length = arrow_layout.message_bytes(prefix)
            body = self.end + PREFIX_BYTES + length
            self.is_cut = body > size
            if not length or self.is_cut:
                return
            metadata = os.pread(file, length, self.end + PREFIX_BYTES)
            if metadata != self._message.metadata:  # batches of as many rows have the same
                self._message = self._understood(metadata)
            message = self._message
            self.is_cut = body + message.body_bytes > size
            if self.is_cut:
                return
            self.end = body + message.body_bytes
            if message.offsets:
                yield Place(message.rows, tuple(o if o < 0 else body + o for o in message.offsets))

    def _understood(self, metadata: bytes) -> _Message:
        kind, body_bytes, at = arrow_layout.header(metadata)
        if kind == SCHEMA and self._columns is None and not body_bytes:
            self._kinds = arrow_layout.schema_kinds(metadata, at)
            self._columns = self._of_table()
            return _Message(metadata, 0)
        if kind != RECORD_BATCH or self._columns is None:
            raise arrow_layout.NotASegment("a message that no segment has")
        rows, offsets = self._batch(metadata, at, body_bytes)
        return _Message(metadata, body_bytes, rows, offsets)

    def _of_table(self) -> list[int]:
        """The place of each column of the table among those of the file, or -1."""
        found = {name: i for i, (name, _) in enumerate(self._kinds)}
        places = [found.get(column.name, -1) for column in self.table.columns]
        if places[0] < 0:
            raise arrow_layout.NotASegment("not a segment of this table")
        for column, place in zip(self.table.columns, places, strict=True):
            if place >= 0 and self._kinds[place][1] != column.kind:
                raise arrow_layout.NotASegment(f"column {column.name} has another type")
        return places

    def _batch(self, metadata: bytes, at: int, body_bytes: int) -> tuple[int, tuple[int, ...]]:
        """The rows of a batch, and where in its body the columns of the table begin."""
        layout = arrow_layout.batch_layout(metadata, at, len(self._kinds))
        if not 0 <= layout.rows <= MOST_BATCH_ROWS:
            raise arrow_layout.NotASegment(f"a batch of {layout.rows:,} rows")
        offsets = []
        for column, place in zip(self.table.columns, self._columns or (), strict=True):
            if place < 0:
                offsets.append(-1)
                continue
            values_bytes = layout.rows * WIDTH_BYTES[column.kind]
            begin, length = layout.offsets[place], layout.lengths[place]
            if layout.nulls[place]:
                raise arrow_layout.NotASegment(f"column {column.name} has nulls")
            if values_bytes > length or not 0 <= begin <= body_bytes - values_bytes:
                raise arrow_layout.NotASegment(
                    f"a batch of {layout.rows:,} rows that are not there"
                )
            offsets.append(begin)
        return layout.rows, tuple(offsets)


def values_at(file: int, table: Table, place: Place, column: int, first: int, count: int) -> Any:
    """`count` values of a column from row `first` of a batch on; unknown in one that the file does
    not have. Errors: `CutError` where the file has become shorter; OSError."""
    kind = dtype(table, column)
    if place.offsets[column] < 0:
        return unknown(table, column, count)
    size = count * kind.itemsize
    data = os.pread(file, size, place.offsets[column] + first * kind.itemsize)
    if len(data) < size:
        raise CutError("it became shorter")
    return np.frombuffer(data, kind)


def unknown(table: Table, column: int, count: int) -> NDArray[Any]:
    """Values of a column of which nothing is known."""
    kind = dtype(table, column)
    return np.full(count, np.nan if kind.kind == "f" else -1, kind)


def joined(table: Table, parts: list[Columns]) -> Columns:
    """The parts one after the other; empty columns where there are none."""
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return _nothing(table)
    if len(parts) == 1:
        return parts[0]
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


@cache
def dtype(table: Table, column: int) -> np.dtype[Any]:
    """The type of a column's values, as they lie in a file."""
    return np.dtype(f"<{table.columns[column].kind}")


@cache
def _nothing(table: Table) -> Columns:
    return [np.empty(0, dtype(table, i)) for i in range(len(table.columns))]
