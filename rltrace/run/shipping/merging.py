"""Merging small packs, so that a month of a node is a few hundred objects.

A merged pack has the number of the last of those that it is made of, and follows what the first of
them followed: so whoever has read some of them, or none, goes on from it. It is there before they
are deleted, the newest first. Where a store lets nobody delete, packs stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rltrace.run.shipping.changes import PAGE_BYTES
from rltrace.trace.packs import NotAPack, Piece, pack, unpack
from rltrace.trace.store import PACKS, Store, pack_name

TOGETHER = 64
"""So many packs become one."""

_MOST_BYTES = 8 << 20  # of what is in them; larger ones are few for what they hold
_FEWEST = 8


@dataclass(frozen=True)
class _Taken:
    """A pack that is at the store: its stream, its number, that of the one before it, how long it
    is there, and how much is in it."""

    stream: str
    number: int
    after: int
    stored_bytes: int
    held_bytes: int

    @property
    def path(self) -> str:
        return f"{PACKS}/{pack_name(self.stream, self.number, self.after)}"


class Merger:
    def __init__(self) -> None:
        self._packs: list[_Taken] = []
        self._due: list[_Taken] = []
        self._may_delete = True

    def note(
        self, stream: str, number: int, after: int, stored_bytes: int, held_bytes: int
    ) -> None:
        if sum(one.held_bytes for one in self._packs) + held_bytes > _MOST_BYTES:
            self._begin_anew()
        self._packs.append(_Taken(stream, number, after, stored_bytes, held_bytes))
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
    """The pieces of packs as those of one: of each page, and of each file that is replaced, the
    newest."""
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
        found += _joined(path, pages)
    return found


def _joined(path: str, pages: dict[int, bytes]) -> list[Piece]:
    """The pages of a file, those behind each other as one piece."""
    found: list[tuple[int, bytearray]] = []
    for at in sorted(pages):
        if found and at == found[-1][0] + len(found[-1][1]):
            found[-1][1].extend(pages[at])
        else:
            found.append((at, bytearray(pages[at])))
    return [Piece(path, at, bytes(data)) for at, data in found]
