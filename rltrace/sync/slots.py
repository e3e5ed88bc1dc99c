"""Slot files: each is a valid safetensors file, so that whatever reads those can read a version."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.layout import Layout
from rltrace.sync.place import reserve
from rltrace.trace.errors import RltraceError

_PAGE = 4096
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE: MAP_POPULATE leaves shared pages to be write-faulted
_NAME = "slot-{generation}-{slot}.safetensors"
SLOT_FILES = "slot-*.safetensors*"


def slot_path(folder: Path, generation: int, slot: int) -> Path:
    """The file of one slot; those of another generation have another layout."""
    return folder / _NAME.format(generation=generation, slot=slot)


def create_slot(path: Path, layout: Layout) -> None:
    """Makes a slot file, its memory taken and its header written, whole or not at all.

    Errors: `RltraceError` where there is too little memory.
    """
    header = _header(layout)
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    reserve(fresh, len(header) + layout.bytes)
    with open(fresh, "r+b") as file:
        file.write(header)
    fresh.rename(path)


def slot_bytes(layout: Layout) -> int:
    """Memory that one slot takes."""
    return len(_header(layout)) + layout.bytes


def map_slot(path: Path, layout: Layout, writable: bool) -> NDArray[np.uint8]:
    """The data of a slot, in place. It is mapped whole at once, so that no copy stops at a page for
    the first time; a reader's is read-only. Errors: `OSError`; `RltraceError` for a short file."""
    start = len(_header(layout))
    fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size < start + layout.bytes:
            raise RltraceError(
                f"{path} was cut: its weights are gone until the next publisher opens"
            )
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        mapped = mmap.mmap(
            fd, start + layout.bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE, protection
        )
    finally:
        os.close(fd)
    return np.frombuffer(mapped, dtype=np.uint8)[start:]


def _header(layout: Layout) -> bytes:
    """Length and JSON, filled up with blanks to a page, so that the data begins on one. Tied names
    are told as the safetensors library itself tells them: in the metadata, name -> stored name."""
    metadata = {"format": "pt", "rltrace.layout": layout.id, **dict(layout.aliases)}
    said: dict[str, Any] = {"__metadata__": metadata}
    for e in layout.entries:
        said[e.name] = {
            "dtype": e.dtype,
            "shape": list(e.shape),
            "data_offsets": [e.offset, e.offset + e.bytes],
        }
    text = json.dumps(said, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _PAGE)
    return len(text).to_bytes(8, "little") + text
