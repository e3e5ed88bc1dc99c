"""What of a run's files has changed since it was shipped.

Rows are stored through a memory map, which leaves no reliable mark on a file, so its content is
compared, by a digest of each page of it. A file is read from its beginning to its end: what is read
earlier was stored later (a batch's length word and the marker of a row come first in the file and
are stored last), so no row is shipped before all of it is. For the same reason the files that rows
refer to are read after them and go into the same pack.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rltrace.trace.clock import monotonic_ns
from rltrace.trace.own_files import is_elsewhere, open_own
from rltrace.trace.packs import Piece, can_hold, is_replaced
from rltrace.trace.run_dir import CLOCKS, DROPPED, ENDS, NAMES, PROBLEMS, PROCESS
from rltrace.trace.schema import TABLES
from rltrace.trace.segment import NEW

PAGE_BYTES = 4096
PACK_BYTES = 4 << 20
"""A pack is closed once the rows in it have come to this, so this much of a node's data is held."""

DIGEST_BYTES = 8
_NOT_OURS = (errno.ENOENT, errno.ELOOP, errno.EINVAL)  # it is replaced, a link, or a pipe
_READ_BYTES = 1 << 18
_FOLLOWED_ROUNDS, _SELDOM_ROUNDS = 4, 16
_TOLD = (NAMES, PROBLEMS, ENDS, CLOCKS, DROPPED, PROCESS)


@dataclass(frozen=True)
class Change:
    """A piece of a file that is not shipped, with the digests of its pages."""

    piece: Piece
    digests: bytes


class Changes:
    """Finds what changed in the run in `run_dir`; `is_ours` says of a file (its folder and name)
    whether it is this node's to ship. `shipped` has the digests of the pages of each file that are
    shipped, one behind the other."""

    def __init__(self, run_dir: Path, is_ours: Callable[[str, str], bool]) -> None:
        self._run_dir = run_dir
        self._is_ours = is_ours
        self.shipped: dict[str, bytearray] = {}
        self._told: dict[str, tuple[int, int, int]] = {}  # files whose mark tells of a change
        self._same: dict[str, int] = {}  # for how many rounds the rows of a file did not change
        self._looked_ns: dict[str, int] = {}  # when the rows of a file were looked at last
        self._round = 0

    def packs(self, everything: bool = False) -> Iterator[list[Change]]:
        """What has changed, a pack after the other; what is `done` with is not found again.
        `everything`: also files in which nothing has changed for long, which are looked at seldom.
        Errors: OSError."""
        self._round += 1
        while _bytes(told := list(self._of_told())) >= PACK_BYTES:
            yield told
        held: list[Change] = []
        held_bytes = 0
        for folder in TABLES:
            for name in self._names(folder):
                path = f"{folder}/{name}"
                if not (everything or self._is_due(path)):
                    continue
                self._same[path] = self._same.get(path, 0) + 1
                self._looked_ns[path] = monotonic_ns()
                for change in self._of_file(path):
                    self._same[path] = 0
                    held.append(change)
                    held_bytes += len(change.piece.data)
                    if held_bytes >= PACK_BYTES:
                        yield [*self._of_told(), *held]
                        held, held_bytes = [], 0
        if rest := [*self._of_told(), *held]:
            yield rest

    def done(self, changes: list[Change]) -> None:
        """Notes that these are shipped."""
        for change in changes:
            piece = change.piece
            if piece.replaced:
                self.shipped[piece.path] = bytearray(change.digests)
                continue
            known = self.shipped.setdefault(piece.path, bytearray())
            at = piece.offset // PAGE_BYTES * DIGEST_BYTES
            end = at + len(change.digests)
            known.extend(bytes(max(0, end - len(known))))
            known[at:end] = change.digests

    def all_looked_ns(self) -> int | None:
        """Since when the rows of every file have been looked at (ns of the monotonic clock); None
        where there are none."""
        return min(self._looked_ns.values(), default=None)

    def left_bytes(self) -> int:
        """How much has changed. Errors: OSError."""
        paths = [f"{folder}/{name}" for folder in (*_TOLD, *TABLES) for name in self._names(folder)]
        return sum(_bytes(self._of_file(path)) for path in paths)

    def _is_due(self, path: str) -> bool:
        """A file that has not changed for long is looked at seldom: hundreds of processes may have
        ended, or wait."""
        same = self._same.get(path, 0)
        if same <= _FOLLOWED_ROUNDS:
            return True
        every = min(_SELDOM_ROUNDS, 2 ** (same - _FOLLOWED_ROUNDS))
        return bool((self._round + hash(path)) % every == 0)

    def _of_told(self) -> Iterator[Change]:
        """Of the small files that rows refer to, some `PACK_BYTES` at most."""
        held = 0
        for folder in _TOLD:
            for name in self._names(folder):
                path = f"{folder}/{name}"
                try:
                    status = os.stat(self._run_dir / path)
                except OSError:
                    continue  # it is being replaced
                mark = (status.st_mtime_ns, status.st_size, status.st_ino)
                if self._told.get(path) == mark:
                    continue
                changes = list(self._of_file(path))
                if not changes:
                    self._told[path] = mark
                for change in changes:
                    held += len(change.piece.data)
                    yield change
                    if held >= PACK_BYTES:
                        return

    def _of_file(self, path: str) -> Iterator[Change]:
        """Pages of a file that differ from those that are shipped, neighbours as one piece."""
        known = bytes(self.shipped.get(path, b""))
        try:
            file, _ = open_own(self._run_dir / path)
        except OSError as error:
            if error.errno in _NOT_OURS:
                return
            raise
        try:
            if is_replaced(path):
                data = os.pread(file, PACK_BYTES, 0)
                digest = _digest(data)
                if digest != known:
                    yield Change(Piece(path, 0, data, True), digest)
                return
            at = 0
            while data := os.pread(file, _READ_BYTES, at):
                yield from _differing(path, at, data, known)
                at += len(data)
                if len(data) % PAGE_BYTES:
                    return  # its end; what is written from now on is for the next round
        finally:
            os.close(file)

    def _names(self, folder: str) -> list[str]:
        if is_elsewhere(self._run_dir / folder):
            return []  # what is there is none of the run's
        try:
            names = sorted(os.listdir(self._run_dir / folder))
        except FileNotFoundError:
            if not self._run_dir.is_dir():
                raise
            return []
        return [n for n in names if _is_shipped(folder, n) and self._is_ours(folder, n)]


def _bytes(changes: Iterable[Change]) -> int:
    return sum(len(change.piece.data) for change in changes)


def _is_shipped(folder: str, name: str) -> bool:
    if not can_hold(name):  # nobody here has made it, and with it nobody could read the pack
        return False
    if folder in TABLES:
        return name.endswith(".arrows") and not name.endswith(NEW)
    return name.endswith((".json", ".jsonl"))


def _differing(path: str, offset: int, data: bytes, known: bytes) -> Iterator[Change]:
    first, start, held = offset // PAGE_BYTES, -1, b""
    for at in range(0, len(data), PAGE_BYTES):
        digest = _digest(data[at : at + PAGE_BYTES])
        place = (first + at // PAGE_BYTES) * DIGEST_BYTES
        if known[place : place + DIGEST_BYTES] != digest:
            start = at if start < 0 else start
            held += digest
        elif start >= 0:
            yield Change(Piece(path, offset + start, data[start:at]), held)
            start, held = -1, b""
    if start >= 0:
        yield Change(Piece(path, offset + start, data[start:]), held)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
