"""Filling the slots of this host from a parent, and finding another parent when it is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import numpy as np

from rltrace.hooks.span_api import span
from rltrace.sync.arena import Arena, SlotWrite
from rltrace.sync.blocks import Digests, block_count, digests_of, root_of
from rltrace.sync.fetching import Fetch, Progress
from rltrace.sync.layout import Layout
from rltrace.sync.recording import moved
from rltrace.sync.serving import Node
from rltrace.sync.shelf import GoneError, Held, Shelf
from rltrace.sync.version import Manifest
from rltrace.sync.wire import HEARTBEAT_S, Address, Connection, LinkError, RefusedError
from rltrace.trace.errors import RltraceError

_AGAIN_S = 0.1
_SLOT_PATIENCE_S = 0.5


@dataclass(frozen=True)
class Received:
    """One version that arrived whole. `wire_bytes` is what its payloads took."""

    manifest: Manifest
    parent: str
    seconds: float
    progress: Progress


@dataclass(frozen=True)
class Wishes:
    """How a node follows: `keep` whole versions in its slots, so many `streams` at a time, and
    `changes` of what it holds where the parent has them."""

    keep: int = 2
    streams: int = 2
    changes: bool = True


class _Elsewhere(Exception):
    """The parent has children enough; they would take this one."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__()
        self.addresses = addresses


class Follower(threading.Thread):
    """Follows `parent`, and when that is gone the ones above it, then `parent` again. `me` is
    this node as its own server knows it. `on_received` is called, in this thread, for each
    version that has arrived."""

    def __init__(
        self,
        parent: Address,
        where: str,
        shelf: Shelf,
        token: bytes,
        me: Node,
        wishes: Wishes,
        on_received: Callable[[Received], None],
    ) -> None:
        super().__init__(name="rltrace.sync follower", daemon=True)
        self.error: RltraceError | None = None
        """What ended it."""
        self.line: list[Node] = [Node("", str(parent))]
        """The parent, and those above it, nearest first."""
        self.arena: Arena | None = None
        self.lost = 0
        """How often a parent was lost."""
        self._first = parent
        self._where = where
        self._shelf = shelf
        self._token = token
        self._me = me
        self._wishes = wishes
        self._on_received = on_received
        self._layout: Layout | None = None
        self._arriving: _Arriving | None = None
        self._control: Connection | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        """Until `stop`, or an error that somebody has to look at."""
        tried: list[str] = []
        candidates = [str(self._first)]
        refusals = 0
        try:
            while not self._ended.is_set():
                if not candidates:
                    self._ended.wait(_AGAIN_S)
                    tried, candidates = (
                        [],
                        [*(node.address for node in self.line), str(self._first)],
                    )
                address = candidates.pop(0)
                if address in tried:
                    continue
                try:
                    self._follow(Address.parse(address), tried)
                except _Elsewhere as elsewhere:
                    candidates = [*elsewhere.addresses, address]
                except (LinkError, RefusedError) as error:
                    # Once it has been let in, or at first, a refusal may be damage on the way.
                    refusals += isinstance(error, RefusedError)
                    if isinstance(error, RefusedError) and not self.line[0].id and refusals > 2:
                        raise
                    tried.append(address)
                    if self.line[0].address == address:
                        self.lost += 1
                        above = [node.address for node in self.line[1:]]
                        candidates = [*above, str(self._first), *candidates]
        except RltraceError as error:
            self.error = error
        except Exception as error:  # it must not go unnoticed that nothing is followed any more
            self.error = RltraceError(f"following {self.line[0].address} failed: {error!r}")
        finally:
            self._abandon()

    def stop(self) -> None:
        """Ends at once; the slots keep the versions that are whole."""
        self._ended.set()
        if self._control is not None:
            self._control.abort()
        if self._arriving is not None:
            self._arriving.fetch.abort()
        self.join()

    def _follow(self, parent: Address, tried: list[str]) -> None:
        self._control = connection = Connection.open(parent, self._token)
        try:
            while not self._ended.is_set():
                done = self._newest()
                connection.send(
                    {
                        "ask": "watch",
                        "policy": parent.policy,
                        "after": None if done is None else str(done.manifest.version),
                        "layout": self._layout.id if self._layout else None,
                        "wait_s": HEARTBEAT_S,
                        "changes": self._wishes.changes,
                        "serves": self._me.address,
                        "tried": tried,
                    }
                )
                answer, table = connection.receive()
                self._heed(parent, answer)
                tried.clear()
                if "manifest" in answer:
                    try:
                        self._bring(parent, answer, table)
                    except GoneError:
                        self._abandon()
        finally:
            connection.abort()

    def _heed(self, parent: Address, answer: dict[str, Any]) -> None:
        if answer.get("error"):
            raise RltraceError(f"{parent} is of no use here: {answer['error']}")
        if answer.get("redirect"):
            raise _Elsewhere([str(each) for each in answer["redirect"]])
        try:
            above = [Node(str(each["id"]), str(each["address"])) for each in answer["line"]]
            line = [Node(str(answer["id"]), str(parent)), *above]
        except (KeyError, TypeError) as error:
            raise LinkError(f"{parent} said what makes no sense") from error
        if self._me.id in [node.id for node in line]:
            raise LinkError(f"{parent} follows this node itself")
        self.line = line

    def _newest(self) -> Held | None:
        return next(reversed(self._shelf.whole()), None)

    def _bring(self, parent: Address, answer: dict[str, Any], table: bytes) -> None:
        manifest, layout, digests = checked(answer, table, self._layout)
        arriving = self._arriving
        if arriving is None or arriving.held.manifest != manifest:
            self._abandon()
            arriving = self._begin(manifest, layout, digests)
            if arriving is None:
                return
        with span("sync", "relay", version=manifest.number, bytes=manifest.bytes) as whole:
            try:
                arriving.fetch.run(parent)  # where it is lost, another parent goes on with it
            finally:
                whole.set(items=arriving.fetch.progress.retries)
            with span("sync", "flip", "visible", version=manifest.number):
                self._finish(arriving)
        progress = arriving.fetch.progress
        moved(
            *("relay", arriving.started_ns, manifest.number, manifest.bytes, progress.wire_bytes),
            *(progress.buckets, manifest.root, 0, "tcp"),
        )
        seconds = (monotonic_ns() - arriving.started_ns) / 1e9
        self._on_received(Received(manifest, str(parent), seconds, progress))

    def _begin(self, manifest: Manifest, layout: Layout, digests: Digests) -> _Arriving | None:
        """Takes a slot for what arrives; None where readers hold them all: it is tried again."""
        started_ns = monotonic_ns()
        if self._layout is None or self._layout.id != layout.id or self.arena is None:
            self._take_slots(layout, manifest)
            newest = self._newest()
            if newest is not None and newest.manifest.version >= manifest.version:
                return None  # it was there, from before this process
        assert self.arena is not None
        slot = self.arena.write(_SLOT_PATIENCE_S)
        if slot is None:
            return None
        slot.digests[:] = digests
        memory = _Memory(slot)
        held = Held(manifest, layout, digests, slot.data, is_whole=False, let_go=memory.release)
        base = self._newest()
        if base is None or base.manifest.version.run != manifest.version.run or not base.use():
            base = None
        known = None
        if base is not None and self._wishes.changes:
            held.encode_against(base.manifest.version)
            known = (base.manifest.version, base.data)
        fetch = Fetch(held, self._token, known, self._wishes.streams)
        self._arriving = _Arriving(held, base, memory, slot, fetch, started_ns)
        self._shelf.add(held)
        return self._arriving

    def _take_slots(self, layout: Layout, manifest: Manifest) -> None:
        """Slots of this layout. What a relay before this one has left in them is used again."""
        for held in self._shelf.whole():
            self._shelf.remove(held)
        if self.arena is not None:
            self.arena.close()
        self.arena = Arena.create(self._where, layout, slots=self._wishes.keep + 1)
        self._layout = layout
        lease = self.arena.lease()
        if lease is None:
            return
        known = lease.manifest
        is_of_run = known.version.run == manifest.version.run
        if not is_of_run or not np.array_equal(digests_of(lease.data), lease.digests):
            lease.release()
            return
        memory = _Memory(lease)
        self._shelf.add(
            Held(known, layout, lease.digests, lease.data, is_whole=True, let_go=memory.release)
        )

    def _finish(self, arriving: _Arriving) -> None:
        """Makes it the latest on this host, and lets go of what is older than is to be kept."""
        assert self.arena is not None
        self._arriving = None
        manifest = arriving.held.manifest
        arriving.slot.commit(manifest.step, manifest.version)
        lease = self.arena.lease(manifest.version)
        arriving.memory.now(lease)
        arriving.held.stands = True
        if arriving.base is not None:
            arriving.base.unuse()
        for old in self._shelf.whole()[: -self._wishes.keep]:
            self._shelf.remove(old)

    def _abandon(self) -> None:
        """Gives up what is arriving: its slot is free once no child is being sent from it."""
        arriving, self._arriving = self._arriving, None
        if arriving is None:
            return
        arriving.fetch.abort()
        arriving.held.give_up()
        self._shelf.remove(arriving.held)
        if arriving.base is not None:
            arriving.base.unuse()


@dataclass
class _Arriving:
    held: Held
    base: Held | None  # in use
    memory: _Memory
    slot: SlotWrite
    fetch: Fetch
    started_ns: int


class _Memory:
    """What keeps a slot from being written to: being filled, then a lease."""

    def __init__(self, holder: Any) -> None:
        self._holder = holder

    def now(self, lease: Any) -> None:
        """The slot is held by a lease from here on."""
        self._holder = lease

    def release(self) -> None:
        """The slot is free."""
        end = getattr(self._holder, "abort", None) or getattr(self._holder, "release", None)
        if end is not None:
            with suppress(OSError):
                end()


def checked(
    answer: dict[str, Any], table: bytes, known: Layout | None
) -> tuple[Manifest, Layout, Digests]:
    """Manifest, layout (`known` where the answer has none) and block table of an answer. Errors:
    `LinkError` unless they agree."""
    try:
        manifest = Manifest.from_json(answer["manifest"])
        layout = Layout.from_json(answer["layout"]) if "layout" in answer else known
    except RltraceError as error:
        raise LinkError(str(error)) from error
    digests: Digests = np.frombuffer(table[: len(table) // 8 * 8], dtype="<u8").astype(np.uint64)
    if layout is None or layout.id != manifest.layout_id or layout.bytes != manifest.bytes:
        raise LinkError("a version of another layout than was told")
    if len(digests) != block_count(manifest.bytes) or root_of(digests) != manifest.root:
        raise LinkError("a block table that is not the version's")
    return manifest, layout, digests
