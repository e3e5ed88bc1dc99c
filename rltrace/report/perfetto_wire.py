"""Protobuf wire format for whole columns: a million packets laid down by a few numpy stores.

A record is the same message for many rows, so every row of one record has one width: varints are
padded with continuation bytes to the width that the column's largest value needs (legal protobuf,
and the trace processor reads it). Records of different widths are then merged in time order.
Field numbers come from the official descriptors, never from a copy of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
"""Shape (rows, width): one encoded field or message a row."""

Part = bytes | Bytes
"""A piece of a record: the same bytes in every row, or one value a row."""

_VARINT, _FIXED64, _LENGTH = 0, 1, 2


def varint(value: int) -> bytes:
    """One non-negative integer as the shortest varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def varints(values: NDArray[Any]) -> Bytes:
    """A column of integers as varints of one width; a negative one takes ten bytes (int64)."""
    unsigned = values.astype(np.int64).view(np.uint64)
    largest = int(unsigned.max()) if len(unsigned) else 0
    width = max(1, -(-largest.bit_length() // 7))
    out = np.empty((len(unsigned), width), np.uint8)
    for i in range(width):
        seven = ((unsigned >> np.uint64(7 * i)) & np.uint64(127)).astype(np.uint8)
        out[:, i] = seven | (128 if i < width - 1 else 0)
    return out


def _number(message: Any, field: str) -> int:
    number: int = message.DESCRIPTOR.fields_by_name[field].number
    return number


def integer(message: Any, field: str, values: int | NDArray[Any]) -> list[Part]:
    """A varint field of a protobuf message class: a constant, or one value a row."""
    tag = varint(_number(message, field) << 3 | _VARINT)
    return [tag + varint(values)] if isinstance(values, int) else [tag, varints(values)]


def fixed64(message: Any, field: str, values: NDArray[Any]) -> list[Part]:
    """A fixed64 or double field: eight bytes a row, taken over as they are."""
    tag = varint(_number(message, field) << 3 | _FIXED64)
    little = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
    return [tag, little.view(np.uint8).reshape(-1, 8)]


def nested(message: Any, field: str, parts: Sequence[Part]) -> list[Part]:
    """A field that holds a message made of parts."""
    tag = varint(_number(message, field) << 3 | _LENGTH)
    return [tag + varint(_width(parts)), *parts]


def record(parts: Sequence[Part], rows: int) -> Bytes:
    """The parts side by side, for each row. Shape (rows, width)."""
    out = np.empty((rows, _width(parts)), np.uint8)
    at = 0
    for part in parts:
        width = _width([part])
        out[:, at : at + width] = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        at += width
    return out


def merge(records: Sequence[tuple[NDArray[np.int64], Bytes]], count: int) -> Bytes:
    """Records of different widths in one order: `(places, rows)` puts `rows[i]` at `places[i]`.

    The places of all records together are 0 .. count-1, each once. Returns a flat array of bytes.
    """
    widths = np.zeros(count, np.int64)
    for places, rows in records:
        widths[places] = rows.shape[1]
    ends = np.cumsum(widths)
    out = np.empty(int(ends[-1]) if count else 0, np.uint8)
    for places, rows in records:
        width = rows.shape[1]
        out[(ends[places] - width)[:, None] + np.arange(width)] = rows
    return out


def _width(parts: Sequence[Part]) -> int:
    return sum(len(p) if isinstance(p, bytes) else p.shape[1] for p in parts)
