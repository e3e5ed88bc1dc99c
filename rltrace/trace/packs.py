"""Packs: what a node ships of its run, in pieces that are never changed once they are written.

The rows of a segment are filled in place, and an object store can neither append nor change. So a
node writes a journal: each pack holds the pieces of files that changed since the pack before, and
whoever applies a node's packs in their order has its files. A pack is whole or it is none: its
digest is in front. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rltrace.trace.opened import opened, opener
from rltrace.trace.run_dir import CLOCKS, DROPPED, ENDS, NAMES, PROBLEMS, PROCESS
from rltrace.trace.schema import TABLES
from rltrace.trace.texts import parsed

MOST_PACKED_BYTES = 64 << 20
"""Of a pack as it is stored, and as long as the pieces in it may be together."""
MOST_FILE_BYTES = 1 << 30
"""Of a file of rows; a segment has some 64 MB."""

_MAGIC = b"RLTPACK1"
_DIGEST_BYTES = 16
_LEVEL = 1  # most of what is shipped is space not used yet, which any level makes nothing of
_NAME = re.compile(r"(?!\.)[A-Za-z0-9_.~-]{1,200}")
_REPLACED = (PROCESS,)
_GROWING = (NAMES, PROBLEMS, ENDS, CLOCKS, DROPPED, *TABLES)


class NotAPack(ValueError):
    """The bytes are no pack, or one that was cut or changed."""


@dataclass(frozen=True)
class Piece:
    """Bytes of a file of the run, at `offset` in it. `path` is within the run's directory. A file
    that is `replaced` is the piece and nothing else."""

    path: str
    offset: int
    data: bytes
    replaced: bool = False


def is_replaced(path: str) -> bool:
    """Whether a file of a run is written anew as a whole, where others grow or are filled."""
    return path.partition("/")[0] in _REPLACED


def pack(pieces: Iterable[Piece]) -> bytes:
    """The pieces as one pack."""
    pieces = list(pieces)
    index = [[piece.path, piece.offset, len(piece.data), piece.replaced] for piece in pieces]
    head = json.dumps(index, separators=(",", ":")).encode()
    body = b"".join([len(head).to_bytes(8, "little"), head, *(piece.data for piece in pieces)])
    packed = zlib.compress(body, _LEVEL)
    return _MAGIC + _digest(packed) + packed


def unpack(data: bytes) -> list[Piece]:
    """The pieces of a pack, in their order. Errors: `NotAPack`."""
    packed = data[len(_MAGIC) + _DIGEST_BYTES :]
    if data[: len(_MAGIC)] != _MAGIC:
        raise NotAPack("it is no pack of rltrace")
    if data[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES] != _digest(packed):
        raise NotAPack("it was cut or changed")
    try:
        opened = zlib.decompressobj()
        body = memoryview(opened.decompress(packed, MOST_PACKED_BYTES))
        if not opened.eof:
            raise NotAPack("it is longer than any that rltrace writes")
        at = 8 + int.from_bytes(body[:8], "little")
        pieces = []
        for path, offset, size, replaced in parsed(bytes(body[8:at])):
            pieces.append(
                _checked(Piece(path, offset, bytes(body[at : at + size]), replaced), size)
            )
            at += size
    except (zlib.error, TypeError, ValueError) as error:
        raise NotAPack(str(error)) from None
    return pieces


def apply(pieces: Iterable[Piece], folder: Path) -> None:
    """Puts the pieces into their files below `folder`. Errors: OSError."""
    for piece in pieces:
        path = folder / piece.path
        path.parent.mkdir(exist_ok=True)
        if piece.replaced:
            written = path.with_name(f"{path.name}.{os.getpid()}.tmp")
            with open(written, "wb", opener=opener) as whole:
                whole.write(piece.data)
            written.replace(path)
            continue
        with opened(path, os.O_WRONLY | os.O_CREAT) as file:
            view, at = memoryview(piece.data), piece.offset
            while view:
                done = os.pwrite(file, view, at)
                view, at = view[done:], at + done


def can_hold(name: str) -> bool:
    """Whether a file of this name can be in a pack; those that rltrace makes can."""
    return _NAME.fullmatch(name) is not None


def _checked(piece: Piece, size: object) -> Piece:
    """Errors: `NotAPack` for a piece that no node ships: it could lie outside of the run."""
    if not isinstance(piece.path, str) or type(piece.offset) is not int or type(size) is not int:
        raise NotAPack("a piece is not described as one")
    folder, slash, name = piece.path.partition("/")
    if folder not in (*_REPLACED, *_GROWING) or not slash or not can_hold(name):
        raise NotAPack(f"no run has a file {piece.path!r}")
    if len(piece.data) != size or piece.offset < 0 or piece.offset + size > MOST_FILE_BYTES:
        raise NotAPack(f"a piece of {piece.path} is not as long as it says")
    return piece


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
