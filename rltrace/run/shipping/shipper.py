"""Finds what changed in a run, ships it in packs, merges packs.

A pack that was not taken is forgotten, and what it held is found again as it is by then: so nothing
waits in memory while the network is away, and nothing is lost. A number of a stream is used once:
what was given up may have arrived all the same. So each name also has the number of the pack that
was taken before, and a reader sees whether one is missing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rltrace.run.shipping import shipping_state
from rltrace.trace.clock import monotonic_ns
from rltrace.trace.run_dir import CLOCKS, ENDS, NAMES, PROBLEMS, PROCESS
from rltrace.trace.schema import TABLES
from rltrace.trace.segment import NEW
from rltrace.trace.transfer.store import (
    PACKS,
    NotAPack,
    Piece,
    Store,
    can_hold,
    is_replaced,
    pack,
    pack_name,
    unpack,
)
from rltrace.trace.untrusted_files import is_elsewhere, open_own

MOST_BYTES_PER_S = 20e6  # that leave a node: a fraction of what a job's own network carries
_SAVE_EVERY_S = 60.0
_SAVING_SHARE = 20.0  # the time between two saves over that which one takes, at least
TOGETHER = 64  # packs become one
_MOST_BYTES = 8 << 20  # of what is in them; larger ones are few for what they hold
_FEWEST = 8

PAGE_BYTES = 4096
DIGEST_BYTES = 8
PACK_BYTES = 4 << 20  # of rows close a pack: so much of a node's data is held
_READ_BYTES = 1 << 18
_FOLLOWED_ROUNDS, _SELDOM_ROUNDS = 4, 16
_NOT_OURS = (errno.ENOENT, errno.ELOOP, errno.EINVAL)  # it is replaced, a link, or a pipe
_TOLD = (NAMES, PROBLEMS, ENDS, CLOCKS, PROCESS)


class Shipper:
    def __init__(self, run_dir: Path, name: str, url: str, is_ours: Callable[[str, str], bool]):
        self._run_dir, self._name, self._url = run_dir, name, url
        self._changes = ChangedFiles(run_dir, is_ours)
        self._changes.shipped = shipping_state.load(run_dir, url)
        self._stream = f"{name}.{time.time_ns()}"
        self._number = self._taken = self._saved_packs = 0
        self._merger = Merger()
        self._save_at = 0.0
        self.packs = self.shipped_bytes = self.left_bytes = 0  # of packs: compressed
        self.looked_ns = 0  # monotonic: when the last round began of which all was taken
        self.all_looked_ns = 0  # and since when each file has been looked at

    def look(self) -> None:
        """Looks how many bytes of files are not shipped. Errors: OSError."""
        self.left_bytes = self._changes.left_bytes()

    def ship(
        self, store: Store, everything: bool = False, shipped: Callable[[], None] = lambda: None
    ) -> None:
        """Ships what `ChangedFiles.packs` finds; tells when a pack was `shipped`. Errors: OSError;
        what was not taken is still to be shipped then."""
        began_ns = monotonic_ns()
        for changes in self._changes.packs(everything):
            self._put(store, changes)
            shipped()
        self.looked_ns = began_ns
        self.all_looked_ns = min(began_ns, self._changes.all_looked_ns() or began_ns)
        if time.monotonic() >= self._save_at:
            self.save()

    def merge(self, store: Store) -> None:
        """Merges packs that were shipped, where they are small and many. Errors: OSError."""
        self._merger.merge(store)

    def save(self) -> None:
        """Keeps what is shipped, for whoever goes on: on a full disk, who ships it once more."""
        if self._saved_packs == self.packs:
            return
        began = time.monotonic()
        with suppress(OSError):
            shipping_state.save(self._run_dir, self._name, self._url, self._changes.shipped)
        took_s = time.monotonic() - began
        self._save_at = time.monotonic() + max(_SAVE_EVERY_S, _SAVING_SHARE * took_s)
        self._saved_packs = self.packs

    def _put(self, store: Store, changes: list[FileChange]) -> None:
        began = time.monotonic()
        data = pack(change.piece for change in changes)
        self._number += 1
        held_bytes = _bytes(changes)
        taken = _Taken(self._stream, self._number, self._taken, len(data), held_bytes)
        store.put(taken.path, data)
        self._merger.note(taken)
        self._taken = self._number
        self._changes.done(changes)
        self.packs += 1
        self.shipped_bytes += len(data)
        self.left_bytes = max(0, self.left_bytes - held_bytes)
        time.sleep(max(0.0, len(data) / MOST_BYTES_PER_S - (time.monotonic() - began)))


@dataclass(frozen=True)
class _Taken:
    """A pack that is at the store. `after` is the number of the one before it, `stored_bytes` how
    long it is there, `held_bytes` how much is in it."""

    stream: str
    number: int
    after: int
    stored_bytes: int
    held_bytes: int

    @property
    def path(self) -> str:
        return f"{PACKS}/{pack_name(self.stream, self.number, self.after)}"


class Merger:
    """Merges small packs, so that a month of a node is a few hundred objects. A merged one has the
    number of the last of them, and follows what the first followed: so whoever has read some goes
    on from it. It is there before they are deleted, the newest first."""

    def __init__(self) -> None:
        self._packs: list[_Taken] = []
        self._due: list[_Taken] = []
        self._may_delete = True

    def note(self, taken: _Taken) -> None:
        if sum(one.held_bytes for one in self._packs) + taken.held_bytes > _MOST_BYTES:
            self._begin_anew()
        self._packs.append(taken)
        if len(self._packs) >= TOGETHER:
            self._begin_anew()

    def _begin_anew(self) -> None:
        if not self._due and len(self._packs) >= _FEWEST:
            self._due = self._packs  # else an earlier lot waits, while the store is away
        self._packs = []

    def merge(self, store: Store) -> None:
        """Merges what is due. Errors: OSError when the store is away, and then nothing is lost."""
        if not self._due or not self._may_delete:
            return
        first, last = self._due[0], self._due[-1]
        packs = (data for _, data in store.read({one.path: one.stored_bytes for one in self._due}))
        try:
            whole = pack(merged(unpack(data) for data in packs))
        except (NotAPack, FileNotFoundError):  # somebody else has been at them
            self._due = []
            return
        store.put(f"{PACKS}/{pack_name(last.stream, last.number, first.after)}", whole)
        done, self._due = self._due, []
        try:
            store.delete([one.path for one in reversed(done)])
        except OSError:
            self._may_delete = False


def merged(packs: Iterable[list[Piece]]) -> list[Piece]:
    """The pieces of packs as those of one: the newest of each page and each replaced file."""
    replaced: dict[str, Piece] = {}
    files: dict[str, dict[int, bytes]] = {}
    for pieces in packs:
        for piece in pieces:
            if piece.replaced:
                replaced[piece.path] = piece
                continue
            pages = files.setdefault(piece.path, {})
            for at in range(0, len(piece.data), PAGE_BYTES):
                new = piece.data[at : at + PAGE_BYTES]
                old = pages.get(piece.offset + at, b"")
                pages[piece.offset + at] = new + old[len(new) :]
    found = list(replaced.values())
    for path, pages in files.items():
        joined: list[tuple[int, bytearray]] = []  # pages behind each other
        for at in sorted(pages):
            if joined and at == joined[-1][0] + len(joined[-1][1]):
                joined[-1][1].extend(pages[at])
            else:
                joined.append((at, bytearray(pages[at])))
        found += [Piece(path, at, bytes(data)) for at, data in joined]
    return found


@dataclass(frozen=True)
class FileChange:
    piece: Piece
    digests: bytes  # of its pages


class ChangedFiles:
    """`is_ours` says of a file, its folder and name, whether it is this node's to ship. `shipped`
    has the digests of the pages of each file that are shipped, one behind the other.

    Rows are stored through a memory map, which leaves no reliable mark on a file, so the digests of
    its pages are compared. A file is read from its beginning to its end: what is read earlier was
    stored later (a batch's length word and the marker of a row come first in the file and are
    stored last), so no row is shipped before all of it is. For the same reason the files that rows
    refer to are read after them and go into the same pack.
    """

    def __init__(self, run_dir: Path, is_ours: Callable[[str, str], bool]) -> None:
        self._run_dir = run_dir
        self._is_ours = is_ours
        self.shipped: dict[str, bytearray] = {}
        self._told: dict[str, tuple[int, int, int]] = {}  # files whose mark tells of a change
        self._same: dict[str, int] = {}  # for how many rounds the rows of a file did not change
        self._looked_ns: dict[str, int] = {}  # when the rows of a file were looked at last
        self._round = 0

    def packs(self, everything: bool = False) -> Iterator[list[FileChange]]:
        """What has changed, a pack after the other; `everything`: also of files in which nothing
        has for long. Errors: OSError."""
        self._round += 1
        while _bytes(told := list(self._of_told())) >= PACK_BYTES:
            yield told
        held: list[FileChange] = []
        held_bytes = 0
        for path in self._paths(TABLES):
            same = self._same.get(path, 0)
            seldom = min(_SELDOM_ROUNDS, 1 << max(0, same - _FOLLOWED_ROUNDS))
            if not everything and (self._round + hash(path)) % seldom:
                continue  # hundreds of processes may have ended, or wait
            self._same[path] = same + 1
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

    def done(self, changes: list[FileChange]) -> None:
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
        """Since when the rows of every file have been looked at; None where there are none."""
        return min(self._looked_ns.values(), default=None)

    def left_bytes(self) -> int:
        """How much has changed. Errors: OSError."""
        return sum(_bytes(self._of_file(path)) for path in self._paths((*_TOLD, *TABLES)))

    def _of_told(self) -> Iterator[FileChange]:
        """Of the small files that rows refer to, some `PACK_BYTES` at most."""
        held = 0
        for path in self._paths(_TOLD):
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

    def _of_file(self, path: str) -> Iterator[FileChange]:
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
                if (digest := _digest(data)) != known:
                    yield FileChange(Piece(path, 0, data, True), digest)
                return
            at = 0
            while data := os.pread(file, _READ_BYTES, at):
                yield from _differing(path, at, data, known)
                at += len(data)
                if len(data) % PAGE_BYTES:
                    return  # its end; what is written from now on is for the next round
        finally:
            os.close(file)

    def _paths(self, folders: Iterable[str]) -> Iterator[str]:
        for folder in folders:
            if is_elsewhere(self._run_dir / folder):
                continue  # what is there is none of the run's
            try:
                names = sorted(os.listdir(self._run_dir / folder))
            except FileNotFoundError:
                if not self._run_dir.is_dir():
                    raise
                continue
            for name in names:
                if _is_shipped(folder, name) and self._is_ours(folder, name):
                    yield f"{folder}/{name}"


def _bytes(changes: Iterable[FileChange]) -> int:
    return sum(len(change.piece.data) for change in changes)


def _is_shipped(folder: str, name: str) -> bool:
    if not can_hold(name):  # nobody here has made it, and with it nobody could read the pack
        return False
    if folder in TABLES:
        return name.endswith(".arrows") and not name.endswith(NEW)
    return name.endswith((".json", ".jsonl"))


def _differing(path: str, offset: int, data: bytes, known: bytes) -> Iterator[FileChange]:
    start, held = -1, b""
    for at in range(0, len(data), PAGE_BYTES):
        digest = _digest(data[at : at + PAGE_BYTES])
        place = (offset + at) // PAGE_BYTES * DIGEST_BYTES
        if known[place : place + DIGEST_BYTES] != digest:
            start = at if start < 0 else start
            held += digest
        elif start >= 0:
            yield FileChange(Piece(path, offset + start, data[start:at]), held)
            start, held = -1, b""
    if start >= 0:
        yield FileChange(Piece(path, offset + start, data[start:]), held)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
