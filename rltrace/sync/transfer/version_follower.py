"""Follows a parent into this host's slots, or another when it is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import numpy as np

from rltrace.hooks.span_api import span
from rltrace.sync.memory.arena import SILENCE_S, Arena, SlotWrite
from rltrace.sync.memory.block_digests import Digests, block_count, digests_of, root_of
from rltrace.sync.memory.layout import Layout
from rltrace.sync.memory.policy_memory import check_in_memory
from rltrace.sync.recording import moved
from rltrace.sync.transfer.version_fetcher import Fetch, FetchProgress
from rltrace.sync.transfer.version_server import Node
from rltrace.sync.transfer.version_store import GoneError, HeldVersion, Shelf
from rltrace.sync.transfer.wire import HEARTBEAT_S, Address, Connection, LinkError, RefusedError
from rltrace.sync.version import Behind, Manifest, Version
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.untrusted_files import NONSENSE

_AGAIN_S = 0.1
_POLL_S = 0.002
_SLOT_PATIENCE_S = 0.5


@dataclass(frozen=True)
class Received:
    manifest: Manifest
    parent: str
    seconds: float
    progress: FetchProgress


class VersionFollower(threading.Thread):
    """Follows `parent`, then those above it, then `parent` again; what it has comes to `landing`.
    `me` is this node as its server knows it. `on_received` is called in this thread."""

    def __init__(
        self, parent: Address, landing: Landing, me: Node, on_received: Callable[[Received], None]
    ) -> None:
        super().__init__(name="rltrace.sync follower", daemon=True)
        self.ended_by: RltraceError | None = None
        self.line: list[Node] = [Node("", str(parent))]  # it and those above it, nearest first
        self.lost = 0  # parents
        self.troubles: dict[str, str] = {}  # why each that could be followed cannot be; or empty
        self._failed: dict[str, str] = {}  # of this round, as `troubles`
        self._seen_s = time.monotonic()  # when what is here was the learner's latest
        self._lacks = ""  # what the parent lacks to bring more
        self._first, self._landing, self._me = parent, landing, me
        self._on_received = on_received
        self._control: Connection | None = None
        self._ended = threading.Event()

    @property
    def arena(self) -> Arena | None:
        return self._landing.arena

    def behind(self) -> Behind:
        seconds = time.monotonic() - self._seen_s
        why = why_not(self.troubles) or self._lacks
        if not why and seconds > SILENCE_S:
            comes = self._landing.arriving is not None
            why = "a version is on its way" if comes else f"{self.line[0].address} is silent"
        return Behind(seconds, why) if why else Behind()

    def run(self) -> None:
        tried: list[str] = []
        candidates = [str(self._first)]
        refusals = 0
        sent_on: set[str] = set()
        try:
            while not self._ended.is_set():
                if not candidates:
                    self.troubles, self._failed = self._failed, {}
                    self._ended.wait(_AGAIN_S)
                    tried = []
                    candidates = [*(node.address for node in self.line), str(self._first)]
                address = candidates.pop(0)
                if address in tried:
                    continue
                try:
                    candidates = [*self._follow(Address.parse(address), tried), address]
                    if address in sent_on:  # they may send it round in circles for ever
                        self._ended.wait(_AGAIN_S)
                    sent_on.add(address)
                except (LinkError, RefusedError) as error:
                    # Once it has been let in, or at first, a refusal may be damage on the way.
                    refused = isinstance(error, RefusedError)
                    refusals += refused
                    if refused and not self.line[0].id and refusals > 2:
                        raise
                    tried.append(address)
                    self._failed[address] = "it has another token" if refused else str(error)
                    if self.line[0].address == address:
                        self.lost += 1
                        above = [node.address for node in self.line[1:]]
                        candidates = [*above, str(self._first), *candidates]
        except Exception as error:  # it must not go unnoticed that nothing is followed any more
            failed = RltraceError(f"following {self.line[0].address} failed: {error!r}")
            self.ended_by = error if isinstance(error, RltraceError) else failed
        finally:
            self._landing.abandon()

    def stop(self) -> None:
        self._ended.set()
        if self._control is not None:
            self._control.abort()
        arriving = self._landing.arriving
        if arriving is not None:
            arriving.fetch.abort()
        self.join()

    def _follow(self, parent: Address, tried: list[str]) -> list[str]:
        self._control = connection = Connection.open(parent, self._landing.token)
        try:
            while not self._ended.is_set():
                if self._landing.shelf.is_awaited:
                    self._ended.wait(_POLL_S)
                    continue
                done, known = self._landing.newest(), self._landing.layout
                asked = {
                    "ask": "watch",
                    "policy": parent.policy,
                    "after": None if done is None else str(done.manifest.version),
                    "layout": known.id if known else None,
                    "wait_s": HEARTBEAT_S,
                    "changes": self._landing.changes,
                    "serves": self._me.address,
                    "tried": tried,
                }
                connection.send(asked)
                answer, table = connection.receive()
                if elsewhere := self._heed(parent, answer):
                    return elsewhere
                tried.clear()
                self.troubles, self._failed = {}, {}
                answered_s = time.monotonic()
                if "manifest" in answer:
                    try:
                        self._bring(parent, answer, table)
                    except GoneError:
                        self._landing.abandon()
                self._see(parent, answer, answered_s)
            return []
        finally:
            connection.abort()

    def _see(self, parent: Address, answer: dict[str, Any], answered_s: float) -> None:
        """Notes how far what is here was behind, where the parent had nothing newer then."""
        try:
            behind = Behind(float(answer["behind_s"]), str(answer["why"]))
            newest = answer["newest"] and Version.parse(str(answer["newest"]))
        except (*NONSENSE, RltraceError) as error:
            raise LinkError("it said what makes no sense") from error
        done = self._landing.newest()
        here = done.manifest.version if done is not None else None
        if newest and (here is None or here < newest):
            return
        if newest and here and newest.epoch < here.epoch:
            self._lacks = f"{parent} has {newest}, of a learner that began before that of {here}"
            self._lacks += " (was a clock set back?)"
            return
        why = behind.why
        if not newest and here is None:
            why = f"it answers, but no version of the policy {parent.policy} is published there yet"
            why += f" ({behind.why})" if behind.why else ""
        self._lacks = f"{parent}: {why}" if why else ""
        self._seen_s = answered_s - behind.seconds
        if self.arena is not None:
            self.arena.control.see(self._seen_s, is_relay=True)

    def _heed(self, parent: Address, answer: dict[str, Any]) -> list[str]:
        served = answer.get("serves")
        if served is not None:
            there = Address(parent.host, parent.port, str(served))
            said = f"{parent} is not there: it serves the policy {served}, so follow {there}"
            raise WrongUsage(f"{said} (the name is the publisher's on every node)")
        try:
            if answer.get("redirect"):
                return [_address(each) for each in answer["redirect"]]
            above = [Node(str(each["id"]), _address(each["address"])) for each in answer["line"]]
            line = [Node(str(answer["id"]), str(parent)), *above]
        except (*NONSENSE, RltraceError) as error:
            raise LinkError("it said what makes no sense") from error
        if self._me.id in [node.id for node in line]:
            raise LinkError("it follows this node itself")
        self.line = line
        return []

    def _bring(self, parent: Address, answer: dict[str, Any], table: bytes) -> None:
        manifest, layout, digests = checked(answer, table, self._landing.layout)
        arriving = self._landing.arriving
        if arriving is None or arriving.fetch.held.manifest != manifest:
            self._landing.abandon()
            arriving = self._landing.begin(manifest, layout, digests)
            if arriving is None:
                return
        progress = arriving.fetch.progress
        with span("sync", "relay", version=manifest.number, bytes=manifest.bytes) as whole:
            try:
                arriving.fetch.run(parent)  # where it is lost, another parent goes on with it
            finally:
                whole.set(items=len(progress.damaged) + progress.broken)  # asked for again
            with span("sync", "flip", "visible", version=manifest.number):
                self._landing.finish(arriving)
        took = {"wire_bytes": progress.wire_bytes, "buckets": progress.buckets}
        moved("relay", manifest, arriving.started_ns, 0, "tcp", **took)
        seconds = (monotonic_ns() - arriving.started_ns) / 1e9
        self._on_received(Received(manifest, str(parent), seconds, progress))


def why_not(troubles: Mapping[str, str]) -> str:
    return "; ".join(f"{address}: {why}" for address, why in troubles.items())


def _address(said: object) -> str:
    """Errors: `RltraceError` for what is none: nobody can be followed there."""
    return str(Address.parse(str(said)))


def checked(
    answer: dict[str, Any], table: bytes, known: Layout | None
) -> tuple[Manifest, Layout, Digests]:
    """Manifest, layout (`known` where it has none) and block table. Errors: `LinkError`."""
    try:
        manifest = Manifest.from_json(answer["manifest"])
        layout = Layout.parse(answer["layout"]) if "layout" in answer else known
    except RltraceError as error:
        raise LinkError(str(error)) from error
    digests: Digests = np.frombuffer(table[: len(table) // 8 * 8], dtype="<u8").astype(np.uint64)
    if layout is None or layout.id != manifest.layout_id or layout.bytes != manifest.bytes:
        raise LinkError("a version of another layout than was told")
    if len(digests) != block_count(manifest.bytes) or root_of(digests) != manifest.root:
        raise LinkError("a block table that is not the version's")
    return manifest, layout, digests


@dataclass
class Arriving:
    base: HeldVersion | None  # in use
    slot: SlotWrite
    fetch: Fetch
    started_ns: int


class Landing:
    """The slots of this host that a node fills, one version at a time: by so many `streams`, with
    `changes` of what it holds where the parent has them. `keep` whole versions stay."""

    def __init__(
        self, where: str, shelf: Shelf, token: bytes, keep: int, streams: int, changes: bool
    ) -> None:
        self.arena: Arena | None = None
        self.arriving: Arriving | None = None  # from this parent or from one that was lost
        check_in_memory(where)
        self._where = where
        self.shelf, self.token, self.changes = shelf, token, changes
        self._keep, self._streams = keep, streams

    @property
    def layout(self) -> Layout | None:
        return None if self.arena is None else self.arena.layout

    def newest(self) -> HeldVersion | None:
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
        held = HeldVersion(manifest, layout, digests, slot.data, is_whole=False, let_go=slot.abort)
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
            self.shelf.add(HeldVersion.leased(lease, layout))
        elif lease is not None:
            lease.release()
        return arena
