"""TensorBoard's event files, as far as scalars go: records of a length, its checksum, an `Event`
message and another checksum (TFRecord), with the fields of tensorflow's event.proto and
summary.proto. TensorBoard itself would bring grpc and protobuf for these four fields.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

from rltrace.importers.fitting import ns
from rltrace.importers.log import Record
from rltrace.importers.protobuf import fields

MARK = "tfevents"
"""What the name of every event file has in it."""

_HEADER = struct.Struct("<QI")
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5  # fields of Event
_VALUE = 1  # of Summary
_TAG, _SIMPLE_VALUE = 1, 2  # of Summary.Value
_LARGEST_EVENT_BYTES = 1 << 30


class _Torn(Exception):
    """The file ends within a record, or is damaged there."""


def looks_like(start: bytes) -> bool:
    """Whether a file that begins with these bytes is one of records."""
    return len(start) >= _HEADER.size and _length(start[: _HEADER.size]) is not None


def read(path: Path) -> tuple[list[Record], list[str]]:
    """The scalars of one event file, those that belong to one step and follow each other as one
    record, and what was skipped. Errors: OSError."""
    records: list[Record] = []
    try:
        for event in _events(path):
            found = _scalars(event)
            if not found.readings:
                continue
            last = records[-1] if records else None
            again = last is not None and last.readings.keys() & found.readings.keys()
            if last is None or last.step != found.step or again:
                records.append(found)
            else:
                last.metrics.update(found.metrics)
                last.not_finite.update(found.not_finite)
    except _Torn as torn:
        return records, [f"{path.name} from {torn} on, where it is torn or damaged"]
    return records, []


def _events(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while header := file.read(_HEADER.size):
            at = file.tell() - len(header)
            length = _length(header)
            body = b"" if length is None else file.read(length + 4)
            if length is None or len(body) < length + 4:
                raise _Torn(f"byte {at}")
            yield body[:length]


def _scalars(event: bytes) -> Record:
    found = Record(0, {})
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
        raise _Torn("an event that is no message") from None
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
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC32C[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC32C = tuple(map(_crc32c_of, range(256)))  # Castagnoli's polynomial, which zlib has not
