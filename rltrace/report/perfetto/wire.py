"""Protobuf wire format for whole columns: a million packets laid down by a few numpy stores.

A record is the same message for many rows, so every row of one record has one width: varints are
padded with continuation bytes to the width that the column's largest value needs (legal protobuf,
and the trace processor reads it). Records of different widths are then merged in time order.
Field numbers come from the official descriptors, never from a copy of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
"""Shape (rows, width): one encoded field or message a row."""


class Varints:
    """A column of integers as varints of one width; a negative one takes ten bytes (int64)."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values.astype(np.int64, copy=False).view(np.uint64)
        largest = int(self._values.max()) if len(values) else 0
        self.width = max(1, -(-largest.bit_length() // 7))

    def store(self, into: Bytes) -> None:
        """Lays the rows down. Shape (rows, `width`)."""
        rest = self._values
        for i in range(self.width):
            if i:
                rest = rest >> np.uint64(7)
            more = 128 if i < self.width - 1 else 0
            np.bitwise_or(rest.astype(np.uint8), np.uint8(more), out=into[:, i])


Part = bytes | Bytes | Varints
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


@cache
def _tag(message: Any, field: str, kind: int) -> bytes:
    number: int = message.DESCRIPTOR.fields_by_name[field].number
    return varint(number << 3 | kind)


def integer(message: Any, field: str, values: int | NDArray[Any]) -> list[Part]:
    """A varint field of a protobuf message class: a constant, or one value a row."""
    tag = _tag(message, field, _VARINT)
    return [tag + varint(values)] if isinstance(values, int) else [tag, Varints(values)]


def fixed64(message: Any, field: str, values: NDArray[Any]) -> list[Part]:
    """A fixed64 or double field: eight bytes a row, taken over as they are."""
    tag = _tag(message, field, _FIXED64)
    little = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
    return [tag, little.view(np.uint8).reshape(-1, 8)]


def fixed64s(message: Any, field: str, values: NDArray[Any]) -> list[Part]:
    """A repeated fixed64 field with equally many values in each row. Shape (rows, values)."""
    tag, numbers = fixed64(message, field, values)
    assert isinstance(tag, bytes)
    assert isinstance(numbers, np.ndarray)
    rows, count = values.shape
    out = np.empty((rows, count, len(tag) + 8), np.uint8)
    out[:, :, : len(tag)] = np.frombuffer(tag, np.uint8)
    out[:, :, len(tag) :] = numbers.reshape(rows, count, 8)
    return [out.reshape(rows, -1)]


def nested(message: Any, field: str, parts: Sequence[Part]) -> list[Part]:
    """A field that holds a message made of parts."""
    tag = _tag(message, field, _LENGTH)
    return [tag + varint(sum(map(_width, parts))), *parts]


def record(parts: Sequence[Part], rows: int) -> Bytes:
    """The parts side by side, for each row. Shape (rows, width)."""
    parts = _fewer(parts)
    out = np.empty((rows, sum(map(_width, parts))), np.uint8)
    at = 0
    for part in parts:
        width = _width(part)
        place = out[:, at : at + width]
        if isinstance(part, Varints):
            part.store(place)
        else:
            place[:] = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        at += width
    return out


def _fewer(parts: Sequence[Part]) -> list[Part]:
    """The same parts, where what is the same in every row stands together."""
    fewer: list[Part] = []
    for part in parts:
        if isinstance(part, bytes) and fewer and isinstance(fewer[-1], bytes):
            fewer[-1] += part
        else:
            fewer.append(part)
    return fewer


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
        # Seen as one item of that width at every byte, a row is a single copy.
        item = np.dtype((np.void, rows.shape[1]))
        items = np.ndarray(len(out) - rows.shape[1] + 1, item, out.data, strides=1)
        items[ends[places] - rows.shape[1]] = rows.view(item)[:, 0]
    return out


def _width(part: Part) -> int:
    if isinstance(part, bytes):
        return len(part)
    return part.width if isinstance(part, Varints) else part.shape[1]
