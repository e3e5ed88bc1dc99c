"""Where the columns of a table lie in a segment's file.

What a file says of itself is held against its length and the table before a row is read, so that no
length in it leads beyond its end, or to memory that it does not fill. Only what a segment is made
of is understood: fixed-width columns without nulls or compression (`Message.fbs`, `Schema.fbs`;
flatbuffers are little-endian, references are relative to where they stand).
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.arrow_header import (
    FLOAT_PRECISION,
    PREFIX_BYTES,
    RECORD_BATCH,
    SCHEMA,
    TYPE_FLOAT,
    TYPE_INT,
)
from rltrace.trace.read import bounds
from rltrace.trace.schema import WIDTH_BYTES, Table

Columns = list[NDArray[Any]]  # an array for each column of the table


class CutError(Exception):
    """The file is shorter than it was, or than it says."""


@dataclass(frozen=True)
class Place:
    """A batch; where in the file each column of the table begins (-1: an older writer had none)."""

    rows: int
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class _Message:
    """The head of a message; `offsets` are within the body, and empty of a schema."""

    metadata: bytes
    body_bytes: int
    rows: int = 0
    offsets: tuple[int, ...] = ()


class Stream:
    """The file of a segment of `table`, read to `end`; `is_cut`: a message there is not whole."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.end = 0
        self.is_cut = False
        self._messages = 0
        self._kinds: tuple[tuple[str, str], ...] = ()
        self._columns: list[int] | None = None
        self._message = _Message(b"", 0)

    def batches(self, file: int, size: int) -> Iterator[Place]:
        """The batches that are new and whole in `size` bytes. Errors: `NotASegment`, OSError."""
        if size > bounds.MOST_SEGMENT_BYTES:
            raise NotASegment(f"larger than {bounds.MOST_SEGMENT_BYTES >> 20} MiB")
        while True:
            prefix = os.pread(file, min(PREFIX_BYTES, size - self.end), self.end)
            if len(prefix) < PREFIX_BYTES:
                self.is_cut = bool(prefix.strip(b"\0"))
                return
            mark, length = struct.unpack("<Ii", prefix)
            if not mark:  # space that was allocated for a message to come
                self.is_cut = False
                return
            if mark != 0xFFFFFFFF or not 0 <= length <= MOST_METADATA_BYTES:
                raise NotASegment("no Arrow stream")
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
            self._messages += 1
            if self._messages > _FIRST_MESSAGES + size // bounds.LEAST_BATCH_BYTES:
                raise NotASegment(f"more than {self._messages:,} batches")
            if message.offsets:
                yield Place(message.rows, tuple(o if o < 0 else body + o for o in message.offsets))

    def _understood(self, metadata: bytes) -> _Message:
        kind, body_bytes, at = header(metadata)
        if kind == SCHEMA and self._columns is None and not body_bytes:
            self._kinds = schema_kinds(metadata, at)
            self._columns = self._of_table()
            return _Message(metadata, 0)
        if kind != RECORD_BATCH or self._columns is None:
            raise NotASegment("a message that no segment has")
        return self._batch(metadata, at, body_bytes)

    def _of_table(self) -> list[int]:
        """The place of each column of the table among those of the file, or -1."""
        found = {name: i for i, (name, _) in enumerate(self._kinds)}
        places = [found.get(column.name, -1) for column in self.table.columns]
        if places[0] < 0:
            raise NotASegment("not a segment of this table")
        for column, place in zip(self.table.columns, places, strict=True):
            if place >= 0 and self._kinds[place][1] != column.kind:
                raise NotASegment(f"column {column.name} has another type")
        return places

    def _batch(self, metadata: bytes, at: int, body_bytes: int) -> _Message:
        try:
            rows = _scalar(metadata, at, 0, "q")
            nodes = _pairs(metadata, _target(metadata, at, 1))  # length, nulls
            buffers = _pairs(metadata, _target(metadata, at, 2))  # begin, length
            if _slot(metadata, at, 3):
                raise NotASegment("a compressed batch")
        except struct.error:
            raise NotASegment("a damaged batch") from None
        # Each column has two buffers: a validity bitmap, which is empty, and the values.
        if len(nodes) != len(self._kinds) or len(buffers) != 2 * len(self._kinds):
            raise NotASegment("a batch of other columns than the schema's")
        # Of columns that lack, or lie in one place, rows would take many times what the file does.
        most = min(bounds.MOST_BATCH_ROWS, _ROWS_OF_BODY * body_bytes // self.table.row_bytes)
        if not 0 <= rows <= most:
            raise NotASegment(f"a batch of {rows:,} rows")
        offsets = []
        for column, place in zip(self.table.columns, self._columns or (), strict=True):
            if place < 0:
                offsets.append(-1)
                continue
            values_bytes = rows * WIDTH_BYTES[column.kind]
            begin, length = buffers[2 * place + 1]
            if nodes[place][1]:
                raise NotASegment(f"column {column.name} has nulls")
            if values_bytes > length or not 0 <= begin <= body_bytes - values_bytes:
                raise NotASegment(f"a batch of {rows:,} rows that are not there")
            offsets.append(begin)
        return _Message(metadata, body_bytes, rows, tuple(offsets))


def is_hole(file: int, table: Table, place: Place) -> bool:
    """Whether no byte of a batch's first column was ever written: it has no row."""
    begin, length = place.offsets[0], place.rows * WIDTH_BYTES[table.columns[0].kind]
    try:
        return os.lseek(file, begin, os.SEEK_DATA) >= begin + length
    except OSError as error:  # there is nothing more, or this file system does not tell
        return error.errno == errno.ENXIO


def values_at(file: int, table: Table, place: Place, column: int, first: int, count: int) -> Any:
    """`count` values of a column from row `first` of a batch on; unknown ones where the file lacks
    it. Errors: `CutError` where the file has become shorter; OSError."""
    kind = dtype(table, column)
    if place.offsets[column] < 0:
        return unknown(table, column, count)
    size = count * kind.itemsize
    data = os.pread(file, size, place.offsets[column] + first * kind.itemsize)
    if len(data) < size:
        raise CutError("it became shorter")
    return np.frombuffer(data, kind)


def unknown(table: Table, column: int, count: int) -> NDArray[Any]:
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


def joined_numbered(table: Table, parts: list[Columns]) -> Columns:
    """The same of parts that end with the process of each row."""
    if not parts:
        return [*_nothing(table), np.empty(0, np.int32)]
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


@cache
def dtype(table: Table, column: int) -> np.dtype[Any]:
    """The type of a column's values in a file."""
    return np.dtype(f"<{table.columns[column].kind}")


@cache
def _nothing(table: Table) -> Columns:
    return [np.empty(0, dtype(table, i)) for i in range(len(table.columns))]


MOST_METADATA_BYTES = 1 << 20  # of a message: a segment's schema has 1.5 kB
_MOST_COLUMNS = 1000
_FIRST_MESSAGES = 16
_ROWS_OF_BODY = 4
_LONGEST_NAME_BYTES = 1000
_INT_KINDS = {8: "b", 32: "i", 64: "q"}
_FLOAT_KINDS = {precision: kind for kind, precision in FLOAT_PRECISION.items()}


class NotASegment(ValueError):
    """The bytes are no message of a segment."""


def header(metadata: bytes) -> tuple[int, int, int]:
    """`(kind of the message, length of its body, place of its header)`. Errors: `NotASegment`."""
    try:
        root = _reference(metadata, 0)
        kind = _scalar(metadata, root, 1, "B")
        return kind, _scalar(metadata, root, 3, "q"), _target(metadata, root, 2)
    except struct.error:
        raise NotASegment("a damaged message") from None


@lru_cache(maxsize=16)  # thousands of segments begin with the same few schemas
def schema_kinds(metadata: bytes, at: int) -> tuple[tuple[str, str], ...]:
    """`(name, struct letter, "" if none of ours)` of each column. Errors: `NotASegment`."""
    try:
        fields = _target(metadata, at, 1)
        count = _u32(metadata, fields)
        if count > _MOST_COLUMNS:
            raise NotASegment(f"{count:,} columns")
        places = (_reference(metadata, fields + 4 + 4 * i) for i in range(count))
        return tuple(
            (_text(metadata, _target(metadata, at, 0)), _kind(metadata, at)) for at in places
        )
    except (struct.error, UnicodeDecodeError):
        raise NotASegment("a damaged schema") from None


def _kind(data: bytes, at: int) -> str:
    kind = _scalar(data, at, 2, "B")
    type_ = _target(data, at, 3)
    if kind == TYPE_INT:
        return _INT_KINDS.get(_scalar(data, type_, 0, "i"), "")
    return _FLOAT_KINDS.get(_scalar(data, type_, 0, "h"), "") if kind == TYPE_FLOAT else ""


def _u32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _pairs(data: bytes, at: int) -> list[tuple[int, int]]:
    count = _u32(data, at)
    if count > 2 * _MOST_COLUMNS:
        raise NotASegment(f"{count:,} parts in a batch")
    numbers = struct.unpack_from(f"<{2 * count}q", data, at + 4)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _reference(data: bytes, at: int) -> int:
    return at + _u32(data, at)


def _slot(data: bytes, table: int, field: int) -> int:
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    size = int(struct.unpack_from("<H", data, vtable)[0])
    place = 4 + 2 * field
    offset = int(struct.unpack_from("<H", data, vtable + place)[0]) if place < size else 0
    return table + offset if offset else 0


def _scalar(data: bytes, table: int, field: int, kind: str) -> int:
    slot = _slot(data, table, field)
    return int(struct.unpack_from(f"<{kind}", data, slot)[0]) if slot else 0


def _target(data: bytes, table: int, field: int) -> int:
    slot = _slot(data, table, field)
    if not slot:
        raise NotASegment("a message without its header")
    return _reference(data, slot)


def _text(data: bytes, at: int) -> str:
    size = _u32(data, at)
    if size > _LONGEST_NAME_BYTES:  # a thousand references to one text of a megabyte
        raise NotASegment("a column with an endless name")
    return data[at + 4 : at + 4 + size].decode()
