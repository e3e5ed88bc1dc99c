"""The versions that a node can serve: whole ones, and one that arrives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.memory.arena import Lease
from rltrace.sync.memory.block_digests import Digests
from rltrace.sync.memory.changed_elements import Bytes
from rltrace.sync.memory.encodings import DENSE, Encoded
from rltrace.sync.memory.layout import Layout
from rltrace.sync.version import Manifest, Version

_MOST_KEPT = 0.25  # of a version's bytes: what its changes may take in memory beside it
_AWAITED_S = 0.5  # for a child to come for a version, before another is shown


class GoneError(Exception):
    """A version that is no longer held here, or will not become whole."""


class HeldVersion:
    """One version: `data` is its memory, `have` which blocks are verified. `let_go` is called once,
    when it was dropped and nobody uses it any more."""

    def __init__(
        self,
        manifest: Manifest,
        layout: Layout,
        digests: Digests,
        data: Bytes,
        is_whole: bool,
        let_go: Callable[[], None],
    ) -> None:
        self.manifest, self.layout, self.data, self.let_go = manifest, layout, data, let_go
        self.digests = digests.copy()
        self.have: NDArray[np.bool_] = np.full(len(digests), is_whole)
        self.stands = is_whole  # whether it is the latest of this host, or was: set once it is
        self.base: Version | None = None  # that `encoded` are changes of; None where there are none
        self._encoded: list[Encoded | None] = []
        self._encoded_bytes = 0
        self._users = 1  # whoever is to drop it
        self._dropped = self._gone = False
        self._changed = threading.Condition()

    @staticmethod
    def leased(lease: Lease, layout: Layout) -> HeldVersion:
        """A whole version of this host, which stays leased until it is let go."""
        held = (lease.manifest, layout, lease.digests, lease.data)
        return HeldVersion(*held, is_whole=True, let_go=lease.release)

    @property
    def is_whole(self) -> bool:
        return bool(self.have.all())

    def use(self) -> bool:
        """Keeps the version until `unuse`; False where it is gone already."""
        with self._changed:
            if self._dropped or self._gone:
                return False
            self._users += 1
            return True

    def unuse(self) -> None:
        with self._changed:
            self._users -= 1
            free = not self._users
        if free:
            self.let_go()

    def drop(self) -> None:
        """Has it let go as soon as nobody uses it."""
        with self._changed:
            was_dropped, self._dropped = self._dropped, True
        if not was_dropped:
            self.unuse()

    def give_up(self) -> None:
        """It will not become whole: whoever waits for its blocks is told."""
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def encode_against(self, base: Version) -> None:
        """From here on a block can be had as changes of `base` once `put` has brought them."""
        with self._changed:
            self._encoded = [None] * len(self.digests)
            self.base = base

    def put(self, block: int, encoded: Encoded = DENSE) -> None:
        """A block is verified: it is passed on at once as `encoded`, or as it is to save memory."""
        with self._changed:
            if self.base is not None:
                self._encoded_bytes += len(encoded.payload)
                fits = self._encoded_bytes <= _MOST_KEPT * len(self.data)
                self._encoded[block] = encoded if fits else DENSE
            self.have[block] = True
            self._changed.notify_all()

    def wait(
        self, first: int, end: int, base: Version | None, timeout_s: float
    ) -> list[Encoded] | None:
        """The blocks from `first` on, before `end`, that can be sent now, as changes of `base`
        where there are such, else dense; None where there is none in time. Errors: `GoneError`."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._ready(first, end, base), timeout_s)
        return found or None

    def _ready(self, first: int, end: int, base: Version | None) -> list[Encoded]:
        if self._gone:
            raise GoneError(str(self.manifest.version))
        ready, changes = [], base is not None and base == self.base
        for block in range(first, end):
            encoded = self._encoded[block] if changes else DENSE
            if encoded is None or not self.have[block]:
                break
            ready.append(encoded)
        return ready


class Shelf:
    def __init__(self) -> None:
        self._held: list[HeldVersion] = []
        self._awaited: dict[object, float] = {}
        self._changed = threading.Condition()

    def forget_child(self, child: object) -> None:
        """It has what it heard of (see `newer`), or has gone."""
        with self._changed:
            self._awaited.pop(child, None)

    @property
    def is_awaited(self) -> bool:
        """Whether a child is on its way: a slow one may else find no version that it hears of."""
        with self._changed:
            return any(until_s > time.monotonic() for until_s in self._awaited.values())

    def add(self, held: HeldVersion) -> None:
        with self._changed:
            self._held.append(held)
            self._changed.notify_all()

    def remove(self, held: HeldVersion) -> None:
        """Takes it off the shelf; its memory is let go when nobody uses it."""
        with self._changed:
            if held in self._held:
                self._held.remove(held)
        held.drop()

    def whole(self) -> list[HeldVersion]:
        with self._changed:
            return [held for held in self._held if held.stands]

    def find(self, version: Version) -> HeldVersion | None:
        """The version, in use (end that by `unuse`); None where it is not here."""
        with self._changed:
            for held in self._held:
                if held.manifest.version == version and held.use():
                    return held
        return None

    def newer(
        self, after: Version | None, timeout_s: float, child: object = None
    ) -> HeldVersion | None:
        """The newest version, once it is after `after`, or None. `child` is awaited for it."""

        def newest() -> HeldVersion | None:
            found = self._held[-1] if self._held else None
            return None if found and after and found.manifest.version <= after else found

        with self._changed:
            found = self._changed.wait_for(newest, timeout_s)
            if found is not None and child is not None:
                self._awaited[child] = time.monotonic() + _AWAITED_S
            return found

    def close(self) -> None:
        with self._changed:
            all_held, self._held = self._held, []
        for held in all_held:
            held.give_up()
            held.drop()
