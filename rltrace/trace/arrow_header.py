"""Writes the headers of an Arrow IPC stream without pyarrow.

A stream is a schema message and then record-batch messages, each a length-prefixed flatbuffer
(Arrow columnar format, "Encapsulated message format"; `Message.fbs`, `Schema.fbs`). Our columns are
fixed-width numbers without nulls, so a batch's header follows from its number of rows. Importing
pyarrow would cost a traced process 143 ms and 43 MB.
"""

from __future__ import annotations

import struct

from rltrace.trace.schema import WIDTH_BYTES, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX_BYTES = 8  # of a message: a continuation word (all ones) and the length of its flatbuffer

_METADATA_V5 = 4
SCHEMA, RECORD_BATCH = 1, 3
TYPE_INT, TYPE_FLOAT = 2, 3
FLOAT_PRECISION = {"f": 1, "d": 2}

_SIZE = {"?": 1, "B": 1, "h": 2, "i": 4, "q": 8, "ref": 4}


def schema_message(table: Table) -> bytes:
    out = _Flatbuffer()
    fields_ref = out.table(out.message(SCHEMA, body_bytes=0), [("h", 0), ("ref", None)])[1]
    columns = table.columns
    for column, ref in zip(columns, out.vector_of_refs(fields_ref, len(columns)), strict=True):
        is_float = column.kind in FLOAT_PRECISION
        type_code = TYPE_FLOAT if is_float else TYPE_INT
        # Field: name, nullable, type_type, type, dictionary, children
        slots = [("ref", None), ("?", 0), ("B", type_code), ("ref", None), None, ("ref", None)]
        refs = out.table(ref, slots)
        out.string(refs[0], column.name)
        if is_float:
            out.table(refs[3], [("h", FLOAT_PRECISION[column.kind])])
        else:
            out.table(refs[3], [("i", WIDTH_BYTES[column.kind] * 8), ("?", 1)])
        out.vector_of_refs(refs[5], 0)
    return out.encapsulated()


def batch_message(table: Table, rows: int) -> tuple[bytes, list[int], int]:
    """Header of a record batch: `(message with prefix, offset of each column in the body, bytes of
    the body)`. Columns start at multiples of 8 bytes."""
    offsets, body_bytes = [], 0
    for column in table.columns:
        offsets.append(body_bytes)
        body_bytes += -(-rows * WIDTH_BYTES[column.kind] // 8) * 8
    out = _Flatbuffer()
    header = out.message(RECORD_BATCH, body_bytes)
    refs = out.table(header, [("q", rows), ("ref", None), ("ref", None)])
    nodes, buffers = [], []
    for column, offset in zip(table.columns, offsets, strict=True):
        nodes.append((rows, 0))  # length, null count
        buffers.append((offset, 0))  # no validity bitmap: nothing is null
        buffers.append((offset, rows * WIDTH_BYTES[column.kind]))
    out.vector_of_pairs(refs[1], nodes)
    out.vector_of_pairs(refs[2], buffers)
    return out.encapsulated(), offsets, body_bytes


class _Flatbuffer:
    """Top-down flatbuffer: targets follow what refers to them, as the format demands."""

    def __init__(self) -> None:
        self._bytes = bytearray(4)

    def message(self, header_type: int, body_bytes: int) -> int:
        """Lays down the root `Message`; the place of its reference to the header."""
        slots = [("h", _METADATA_V5), ("B", header_type), ("ref", None), ("q", body_bytes)]
        return self.table(0, slots)[2]

    def table(self, ref: int, slots: Sequence[tuple[str, int | None] | None]) -> dict[int, int]:
        """Lays down a table and its vtable and points `ref` to it. A slot is `(type, value)`, or
        None where absent. Returns the places of the slots of type "ref"."""
        places, end = [], 4
        for slot in slots:
            if slot is None:
                places.append(0)
                continue
            size = _SIZE[slot[0]]
            end = -(-end // size) * size
            places.append(end)
            end += size
        vtable = struct.pack(f"<HH{len(slots)}H", 4 + 2 * len(slots), end, *places)
        self._align(2)
        vtable_at = len(self._bytes)
        self._bytes += vtable
        self._align(8)
        at = len(self._bytes)
        self._bytes += bytes(end)
        struct.pack_into("<i", self._bytes, at, at - vtable_at)
        for slot, place in zip(slots, places, strict=True):
            if slot is not None and slot[1] is not None:
                struct.pack_into(f"<{slot[0]}", self._bytes, at + place, slot[1])
        self._point(ref, at)
        return {i: at + places[i] for i, slot in enumerate(slots) if slot and slot[0] == "ref"}

    def string(self, ref: int, text: str) -> None:
        self._align(4)
        data = text.encode()
        self._point(ref, len(self._bytes))
        self._bytes += struct.pack("<I", len(data)) + data + b"\0"

    def vector_of_refs(self, ref: int, count: int) -> list[int]:
        self._align(4)
        at = len(self._bytes)
        self._point(ref, at)
        self._bytes += struct.pack("<I", count) + bytes(4 * count)
        return [at + 4 + 4 * i for i in range(count)]

    def vector_of_pairs(self, ref: int, pairs: list[tuple[int, int]]) -> None:
        """A vector of structs of two int64; its elements, not its length, are aligned to 8."""
        self._align(8)
        self._bytes += bytes(4)
        self._point(ref, len(self._bytes))
        self._bytes += struct.pack("<I", len(pairs))
        for pair in pairs:
            self._bytes += struct.pack("<qq", *pair)

    def encapsulated(self) -> bytes:
        self._align(8)
        return struct.pack("<Ii", 0xFFFFFFFF, len(self._bytes)) + bytes(self._bytes)

    def _align(self, size: int) -> None:
        self._bytes += bytes(-len(self._bytes) % size)

    def _point(self, ref: int, target: int) -> None:
        struct.pack_into("<I", self._bytes, ref, target - ref)
