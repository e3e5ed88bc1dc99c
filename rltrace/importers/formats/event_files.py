"""TensorBoard's event files, as far as scalars go.

Records are a length, its checksum, an `Event` message and another checksum (TFRecord), with the
fields of tensorflow's event.proto and summary.proto. TensorBoard itself would bring grpc and
protobuf for these four fields.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from rltrace.adapters.log_table import LogRecord, ns
from rltrace.importers.log_records import Counted, Torn, is_text
from rltrace.trace.untrusted_files import open_given

MARK = "tfevents"  # what the name of every event file has in it

_HEADER = struct.Struct("<QI")
_CHECKSUM_BYTES = 4
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5  # fields of Event
_VALUE = 1  # of Summary
_TAG, _SIMPLE_VALUE = 1, 2  # of Summary.Value
_LARGEST_EVENT_BYTES = 1 << 30
_PICTURE_BYTES = 1 << 16  # no event of scalars is as long: what is, is not worth its checksum


def looks_like(start: bytes, name: str) -> bool:
    """Whether a file of that name that begins with these bytes is one of records, be it damaged."""
    return _length(start[: _HEADER.size]) is not None or (MARK in name and not is_text(start))


def read(path: Path, _settings: object) -> tuple[list[LogRecord], list[str], dict[str, str]]:
    """The scalars of an event file, neighbours of one step as one record, and what was skipped."""
    records: list[LogRecord] = []
    skipped: list[str] = []
    damaged = Counted()
    try:
        for at, event in _events(path):
            found = None if event is None else _scalars(event)
            last = records[-1] if records else None
            if found is None:
                damaged.add(at)
            elif not found.readings:
                continue
            # What is known of the record before is of its step once more.
            elif last is None or last.step != found.step or found.readings.keys() & last.readings:
                records.append(found)
            else:
                last.metrics.update(found.metrics)
                last.not_finite.update(found.not_finite)
    except Torn as torn:
        skipped.append(f"{path.name} from {torn} on, where it is torn or damaged")
    if damaged.count:
        several = damaged.count > 1
        where = f"{'the first ' * several}at byte {damaged.first}"
        skipped.append(f"{damaged.count} damaged record{'s' * several} of {path.name}, {where}")
    return records, skipped, {}


def _events(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Where each record begins and its event; None for one that its checksum denies."""
    with open_given(path) as file:
        size = os.fstat(file.fileno()).st_size
        while header := file.read(_HEADER.size):
            at = file.tell() - len(header)
            length = _length(header)
            if length is None or file.tell() + length + _CHECKSUM_BYTES > size:
                raise Torn(f"byte {at}")
            event = file.read(length)
            stored = int.from_bytes(file.read(_CHECKSUM_BYTES), "little")
            yield at, event if length > _PICTURE_BYTES or checksum(event) == stored else None


def _scalars(event: bytes) -> LogRecord | None:
    """The scalars of an event; None for what is no event."""
    found = LogRecord(0, {})
    try:
        for field, value in fields(event):
            if field == _WALL_TIME:
                found.real_ns = ns(struct.unpack("<d", value)[0])
            elif field == _STEP:
                found.step = int(value)
            elif field == _SUMMARY:
                for inner, one in fields(value):
                    named = dict(fields(one)) if inner == _VALUE else {}
                    if _TAG in named and len(named.get(_SIMPLE_VALUE, b"")) == 4:
                        scalar = struct.unpack("<f", named[_SIMPLE_VALUE])[0]
                        kept = found.metrics if math.isfinite(scalar) else found.not_finite
                        kept[named[_TAG].decode("utf-8", "replace")] = scalar
    except (IndexError, struct.error, TypeError, ValueError):
        return None
    return found


def _length(header: bytes) -> int | None:
    """The length in a record's header; None where its checksum denies it."""
    if len(header) < _HEADER.size:
        return None
    length, stored = _HEADER.unpack(header)
    right = checksum(header[:8]) == stored and length <= _LARGEST_EVENT_BYTES
    return length if right else None


def checksum(data: bytes) -> int:
    """What a record has after its length and after its message: CRC-32C, masked."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Castagnoli's polynomial, which zlib has not."""
    state, table = 0xFFFFFFFF, _table()
    for byte in data:
        state = state >> 8 ^ table[(state ^ byte) & 0xFF]
    return state ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    def of(byte: int) -> int:
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        return byte

    return tuple(map(of, range(256)))


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """`(number, integer or bytes)` of each. Errors: IndexError where one is cut off."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        else:
            size = {1: 8, 5: 4}.get(kind, len(message) + 1)
        if at + size > len(message):
            raise IndexError(at)
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
