"""Slot files: each is a valid safetensors file, so that whatever reads those can read a version."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.layout import Layout
from rltrace.sync.place import reserve
from rltrace.trace.errors import RltraceError

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
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    reserve(fresh, slot_bytes(layout))
    with open(fresh, "r+b") as file:
        file.write(layout.header)
    fresh.rename(path)


def mend_header(path: Path, layout: Layout) -> None:
    """Writes the header anew where something has changed it. Errors: `OSError`."""
    if not header_stands(path, layout):
        with open(path, "r+b") as file:
            file.write(layout.header)


def slot_bytes(layout: Layout) -> int:
    """Memory that one slot takes."""
    return len(layout.header) + layout.bytes


def map_slot(path: Path, layout: Layout, writable: bool) -> NDArray[np.uint8]:
    """The data of a slot, in place. It is mapped whole at once, so that no copy stops at a page for
    the first time; a reader's is read-only. Errors: `OSError`; `RltraceError`: short, or gone."""
    start = len(layout.header)
    fd = _opened(path, os.O_RDWR if writable else os.O_RDONLY)
    try:
        if os.fstat(fd).st_size < start + layout.bytes:
            raise RltraceError(f"{path} was cut: its weights are gone until a publisher opens anew")
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        kind = mmap.MAP_SHARED | mmap.MAP_POPULATE
        mapped = mmap.mmap(fd, start + layout.bytes, kind, protection)
    finally:
        os.close(fd)
    return np.frombuffer(mapped, dtype=np.uint8)[start:]


def header_stands(path: Path, layout: Layout) -> bool:
    """Whether a slot's file begins as it was made, so that whoever reads it finds its tensors."""
    with open(_opened(path, os.O_RDONLY), "rb") as file:
        return file.read(len(layout.header)) == layout.header


def _opened(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise RltraceError(f"{path} was removed while it was in use") from error
