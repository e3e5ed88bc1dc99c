"""A TensorBoard event file of scalars, as `rltrace.importers.event_files` reads them."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from rltrace.importers.event_files import MARK, checksum


class EventFile:
    """A new event file in `folder`, which is made if need be. Errors: OSError."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        where = f"{socket.gethostname()}.{os.getpid()}"
        self.path = folder / f"events.out.{MARK}.{int(time.time())}.{where}"
        self._file = self.path.open("xb")
        self._event(time.time(), 0, _bytes(3, b"brain.Event:2"))
        self._file.flush()

    def add(self, step: int, time_ns: int, scalars: Mapping[str, float]) -> None:
        """Writes the scalars of a step; `time_ns` is Unix time."""
        summary = b"".join(
            _bytes(1, _bytes(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
            for tag, value in scalars.items()
        )
        self._event(time_ns / 1e9, step, _bytes(5, summary))
        self._file.flush()

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _event(self, time_s: float, step: int, what: bytes) -> None:
        message = b"\x09" + struct.pack("<d", time_s) + b"\x10" + _varint(step) + what
        length = struct.pack("<Q", len(message))
        self._file.write(length + struct.pack("<I", checksum(length)))
        self._file.write(message + struct.pack("<I", checksum(message)))


def _bytes(field: int, value: bytes) -> bytes:
    """A field of a message that has a length."""
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
