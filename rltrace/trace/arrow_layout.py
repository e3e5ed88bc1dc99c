"""Where the columns of an Arrow IPC stream lie in its file, found without reading a row.

A reader of a file that is still being filled needs the places, not the values. Only what a segment
is made of is understood: fixed-width columns without nulls or compression (`Message.fbs`,
`Schema.fbs`; flatbuffers are little-endian, references are relative to where they stand).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

from rltrace.trace.arrow_header import FLOAT_PRECISION, TYPE_FLOAT, TYPE_INT

MOST_METADATA_BYTES = 1 << 20
"""Of a message: a segment's schema has 1.5 kB."""

_MOST_COLUMNS = 1000
_LONGEST_NAME_BYTES = 1000
_INT_KINDS = {8: "b", 32: "i", 64: "q"}
_FLOAT_KINDS = {precision: kind for kind, precision in FLOAT_PRECISION.items()}


class NotASegment(ValueError):
    """The bytes are no message of a segment."""


@dataclass(frozen=True)
class BatchLayout:
    """A record batch: its rows, and for each column where its values begin in the body, of how many
    bytes they are, and how many of them are null."""

    rows: int
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    nulls: tuple[int, ...]


def message_bytes(prefix: bytes) -> int:
    """Length of the metadata after the prefix; 0 where there is no message yet, or no more.
    Errors: `NotASegment`."""
    mark, length = struct.unpack_from("<Ii", prefix)
    if mark == 0:  # space that was allocated for a message to come
        return 0
    if mark != 0xFFFFFFFF or not 0 <= length <= MOST_METADATA_BYTES:
        raise NotASegment("no Arrow stream")
    return int(length)


def header(metadata: bytes) -> tuple[int, int, int]:
    """`(kind of the message, length of its body, place of its header)`. Errors: `NotASegment`."""
    try:
        root = _reference(metadata, 0)
        kind = _scalar(metadata, root, 1, "B")
        body = _scalar(metadata, root, 3, "q")
        return kind, body, _target(metadata, root, 2)
    except struct.error:
        raise NotASegment("a damaged message") from None


@lru_cache(maxsize=16)  # thousands of segments begin with the same few schemas
def schema_kinds(metadata: bytes, at: int) -> tuple[tuple[str, str], ...]:
    """`(name, struct letter)` of each column of a schema; the letter is empty for a column that is
    no number of ours. Errors: `NotASegment`."""
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


def batch_layout(metadata: bytes, at: int, columns: int) -> BatchLayout:
    """The layout of a record batch of so many columns. Errors: `NotASegment`, also where it is
    compressed."""
    try:
        rows = _scalar(metadata, at, 0, "q")
        nodes = _pairs(metadata, _target(metadata, at, 1))
        buffers = _pairs(metadata, _target(metadata, at, 2))
        if _slot(metadata, at, 3):
            raise NotASegment("a compressed batch")
    except struct.error:
        raise NotASegment("a damaged batch") from None
    # Each column has two buffers: a validity bitmap, which is empty, and the values.
    if len(nodes) != columns or len(buffers) != 2 * columns:
        raise NotASegment("a batch of other columns than the schema's")
    offsets, lengths = tuple(b[0] for b in buffers[1::2]), tuple(b[1] for b in buffers[1::2])
    return BatchLayout(rows, offsets, lengths, tuple(node[1] for node in nodes))


def _kind(data: bytes, at: int) -> str:
    kind = _scalar(data, at, 2, "B")
    type_ = _target(data, at, 3)
    if kind == TYPE_INT:
        return _INT_KINDS.get(_scalar(data, type_, 0, "i"), "")
    if kind == TYPE_FLOAT:
        return _FLOAT_KINDS.get(_scalar(data, type_, 0, "h"), "")
    return ""


def _u32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _pairs(data: bytes, at: int) -> list[tuple[int, int]]:
    """A vector of structs of two int64."""
    count = _u32(data, at)
    if count > 2 * _MOST_COLUMNS:
        raise NotASegment(f"{count:,} parts in a batch")
    numbers = struct.unpack_from(f"<{2 * count}q", data, at + 4)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _reference(data: bytes, at: int) -> int:
    return at + _u32(data, at)


def _slot(data: bytes, table: int, field: int) -> int:
    """Place of a table's field, 0 where it is absent."""
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
