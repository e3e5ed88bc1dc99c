"""Where a version arrives on this host: a slot, which is on the shelf for children from the first
block on, and becomes the latest once it is whole."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic_ns

import numpy as np

from rltrace.sync.arena import Arena, SlotWrite
from rltrace.sync.blocks import Digests, digests_of
from rltrace.sync.fetching import Fetch
from rltrace.sync.layout import Layout
from rltrace.sync.place import check_in_memory
from rltrace.sync.shelf import Held, Shelf
from rltrace.sync.version import Manifest

_SLOT_PATIENCE_S = 0.5


@dataclass
class Arriving:
    """One version on its way."""

    base: Held | None  # in use
    slot: SlotWrite
    fetch: Fetch
    started_ns: int


class Landing:
    """The slots of this host that a node fills, one version at a time: by so many `streams`, as
    `changes` of what it holds where the parent has them. `keep` whole versions stay."""

    def __init__(
        self, where: str, shelf: Shelf, token: bytes, keep: int, streams: int, changes: bool
    ) -> None:
        self.arena: Arena | None = None
        self.arriving: Arriving | None = None
        """What is on its way, from this parent or from one that was lost."""
        check_in_memory(where)
        self._where = where
        self.shelf, self.token, self.changes = shelf, token, changes
        self._keep, self._streams = keep, streams

    @property
    def layout(self) -> Layout | None:
        """That of the slots, once there are any."""
        return None if self.arena is None else self.arena.layout

    def newest(self) -> Held | None:
        """The latest version that is whole."""
        return next(reversed(self.shelf.whole()), None)

    def begin(self, manifest: Manifest, layout: Layout, digests: Digests) -> Arriving | None:
        """Takes a slot for what arrives; None where readers hold them all: it is tried again."""
        started_ns = monotonic_ns()
        if self.arena is None or self.arena.layout.id != layout.id:
            self.arena = self._take_slots(layout)
            newest = self.newest()
            if newest is not None and newest.manifest.version >= manifest.version:
                return None  # it was there, from before this process
        slot = self.arena.write(_SLOT_PATIENCE_S)
        if slot is None:
            return None
        slot.digests[:] = digests
        held = Held(manifest, layout, digests, slot.data, is_whole=False, let_go=slot.abort)
        base = self.newest()
        if base is None or base.manifest.version.run != manifest.version.run or not base.use():
            base = None
        known = None
        if base is not None and self.changes:
            held.encode_against(base.manifest.version)
            known = (base.manifest.version, base.data)
        fetch = Fetch(held, self.token, known, self._streams)
        self.arriving = Arriving(base, slot, fetch, started_ns)
        self.shelf.add(held)
        return self.arriving

    def finish(self, arriving: Arriving) -> None:
        """Makes it the latest on this host, and lets go of what is older than is to be kept."""
        assert self.arena is not None
        self.arriving = None
        manifest = arriving.fetch.held.manifest
        arriving.slot.commit(manifest.step, manifest.version)
        lease = self.arena.lease(manifest.version)
        if lease is not None:
            arriving.fetch.held.let_go = lease.release
        arriving.fetch.held.stands = True
        if arriving.base is not None:
            arriving.base.unuse()
        for old in self.shelf.whole()[: -self._keep]:
            self.shelf.remove(old)

    def abandon(self) -> None:
        """Gives up what is arriving: its slot is free once no child is being sent from it."""
        arriving, self.arriving = self.arriving, None
        if arriving is None:
            return
        arriving.fetch.abort()
        arriving.fetch.held.give_up()
        self.shelf.remove(arriving.fetch.held)
        if arriving.base is not None:
            arriving.base.unuse()

    def _take_slots(self, layout: Layout) -> Arena:
        """Slots of this layout. What a relay before this one has left in them is used again."""
        for held in self.shelf.whole():
            self.shelf.remove(held)
        if self.arena is not None:
            self.arena.close()
        arena = Arena.create(self._where, layout, self._keep + 1, is_relay=True)
        lease = arena.lease()
        if lease is not None and np.array_equal(digests_of(lease.data), lease.digests):
            self.shelf.add(Held.leased(lease, layout))
        elif lease is not None:
            lease.release()
        return arena
