"""A node that always holds a whole version, and passes versions on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic, sleep

import numpy as np

from rltrace.hooks.span_api import span
from rltrace.sync.memory.arena import Arena, ReplacedError, lies_here
from rltrace.sync.memory.block_digests import BLOCK_BYTES, block_count, block_range
from rltrace.sync.memory.copying import TensorPieces
from rltrace.sync.memory.dtypes import ITEM_BYTES
from rltrace.sync.memory.encodings import Encoder
from rltrace.sync.memory.layout import Layout
from rltrace.sync.memory.locks import Closing
from rltrace.sync.memory.policy_memory import check_in_memory, folder_of
from rltrace.sync.transfer.version_follower import Landing, Received, VersionFollower, why_not
from rltrace.sync.transfer.version_server import Node, VersionServer
from rltrace.sync.transfer.version_store import HeldVersion, Shelf
from rltrace.sync.transfer.wire import Address, token_of
from rltrace.sync.version import NO_ROOT, Behind, Manifest, Version
from rltrace.trace.errors import CANNOT_TELL, RltraceError, WrongUsage

_POLL_S = 0.002
_PATIENCE_S = 1.0
_AGAIN_S = 1.0


@dataclass(frozen=True)
class Status:
    manifest: Manifest | None
    parent: str  # "" beside the publisher
    children: int
    lost: int  # parents
    sent_bytes: int  # to its children
    troubles: Mapping[str, str]  # why each node cannot be followed, by address
    behind: Behind  # how far it is behind the learner


class Relay(Closing):
    """A node. Everything runs in threads of this process, which end with `close`."""

    def __init__(self, shelf: Shelf, server: VersionServer, work: Source | VersionFollower) -> None:
        self._shelf, self._server, self._work = shelf, server, work
        work.start()

    @staticmethod
    def serve(
        where: str = "shm://policy",
        host: str = "127.0.0.1",
        port: int = 0,
        fanout: int = 0,
        gbps: float = 0.0,
        token: str | None = None,
    ) -> Relay:
        """Serves what a publisher of this host publishes at `where`, from its slots; one that is
        not there yet is waited for. `fanout` is how many children are taken before further ones are
        sent to those (0: any number); a `fanout` of 1 on every node makes a chain. `gbps` is how
        many 10⁹ bits a second are sent at most, to leave the rest of a link to others (0: as many
        as can be). `token`: see `token_of`.

        Errors: `RltraceError` where nobody can listen there. What else goes wrong is told by
        `wait`, and is `error`.
        """
        shelf = Shelf()
        source = Source(where, shelf, lambda: server.wants_changes)
        policy, secret = folder_of(where).name, token_of(host, token)
        server = VersionServer(shelf, policy, host, port, secret, fanout, gbps)
        server.behind = source.behind
        return Relay(shelf, server, source)

    @staticmethod
    def follow(
        parent: str,
        where: str = "shm://policy",
        host: str = "127.0.0.1",
        port: int = 0,
        fanout: int = 0,
        keep: int = 2,
        streams: int = 2,
        changes: bool = True,
        gbps: float = 0.0,
        token: str | None = None,
        on_received: Callable[[Received], None] = lambda _: None,
    ) -> Relay:
        """Follows `parent` (`tcp://host:port/policy`): each of its versions is brought into slots
        of this host, at `where`, and is the latest there once all of it is verified. `keep` whole
        versions stay; `streams` connections bring a version; with `changes` only what differs from
        the version before is sent, where that is less. When the parent is gone the ones above it
        are followed.

        Errors: `RltraceError` where nobody can listen there. A parent that is not there yet is
        waited for; what else goes wrong later is told by `wait`.
        """
        address = Address.parse(parent)
        shelf, secret = Shelf(), token_of(host, token)
        landing = Landing(where, shelf, token_of(address.host, token), keep, streams, changes)
        server = VersionServer(shelf, address.policy, host, port, secret, fanout, gbps)
        work = VersionFollower(address, landing, Node(server.id, str(server.address)), on_received)
        server.line, server.behind = lambda: work.line, work.behind
        return Relay(shelf, server, work)

    @property
    def address(self) -> str:
        """What children follow: `tcp://host:port/policy`. The policy has the publisher's name for
        it, whatever the place here is called."""
        return str(self._server.address.told)

    @property
    def on_all_networks(self) -> bool:
        return self._server.address.on_all_networks

    @property
    def status(self) -> Status:
        whole = self._shelf.whole()
        follower = self._work if isinstance(self._work, VersionFollower) else None
        return Status(
            manifest=whole[-1].manifest if whole else None,
            parent=follower.line[0].address if follower else "",
            children=self._server.children,
            lost=follower.lost if follower else 0,
            sent_bytes=self._server.sent_bytes,
            troubles=follower.troubles if follower else {},
            behind=self._work.behind(),
        )

    def wait(self, at_least: Version | int = 0, timeout_s: float = 60.0) -> Version:
        """The newest whole version here, once it is not before `at_least` (a version or a counter).

        Errors: `RltraceError` where there is none in time, or what has ended this relay.
        """
        deadline = monotonic() + timeout_s
        while True:
            manifest = self.status.manifest
            if manifest is not None:
                version = manifest.version
                if isinstance(at_least, int):
                    at_least = Version(version.run, version.epoch, at_least)
                if version >= at_least:
                    return version
            if self.ended_by is not None:
                raise self.ended_by
            if monotonic() >= deadline:
                said = f"version {at_least} did not arrive at {self.address} in {timeout_s:g} s"
                why = self._work.behind().why
                raise RltraceError(f"{said}: {why}" if why else said, CANNOT_TELL)
            sleep(_POLL_S)

    @property
    def behind_s(self) -> float:
        return self._work.behind().seconds

    @property
    def error(self) -> RltraceError | None:
        """What keeps newer weights from coming here, or has ended this relay; None: nothing."""
        return self.ended_by or self._work.behind().error(self.address)

    @property
    def ended_by(self) -> RltraceError | None:
        return self._work.ended_by

    def close(self) -> None:
        """Ends it. Rollout workers of this host keep the latest version."""
        self._server.close()
        self._work.stop()
        self._shelf.close()
        if self._work.arena is not None:
            self._work.arena.close()


class ParentReach:
    """Tells when all parents cannot be followed, each reason once, and when one is again."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._told: set[str] = set()

    def news(self, status: Status) -> str | None:
        if not status.troubles:
            self._since = None
            if not self._told:
                return None
            self._told.clear()
            return f"reached {status.parent}"
        now = monotonic()
        self._since = now if self._since is None else self._since
        said = why_not(status.troubles)
        if said in self._told or now < self._since + _PATIENCE_S:
            return None
        self._told.add(said)
        return f"cannot reach {said}; trying again"


class Source(threading.Thread):
    """Puts a host's versions on the shelf, by lease; two while changes are being found."""

    def __init__(self, where: str, shelf: Shelf, wants_changes: Callable[[], bool]) -> None:
        super().__init__(name="rltrace.sync source", daemon=True)
        self.arena: Arena | None = None
        self.ended_by: RltraceError | None = None
        check_in_memory(where)
        self._where, self._shelf, self._wants_changes = where, shelf, wants_changes
        self._encoder = Encoder()
        self._ended = threading.Event()
        self._since_s = monotonic()
        self._trouble = ""

    def run(self) -> None:
        try:
            while not self._ended.wait(_POLL_S):
                self._trouble = self._look()
                if self._trouble:
                    self._ended.wait(_AGAIN_S)
        except Exception as error:  # it must not go unnoticed that nothing is served any more
            failed = RltraceError(f"serving {self._where} failed: {error!r}")
            self.ended_by = error if isinstance(error, RltraceError) else failed

    def behind(self) -> Behind:
        if self.arena is None:
            seconds = monotonic() - self._since_s
            return Behind(seconds, f"nothing is published at {self._where} yet")
        found = self.arena.behind()
        return found if found.why else Behind(found.seconds, self._trouble)

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def _look(self) -> str:
        """Puts the latest version on the shelf; what keeps it from there, until a next one may."""
        newest = self._shelf.whole()[-1:]
        if self._shelf.is_awaited:
            return self._trouble
        try:
            if self.arena is None:
                if not lies_here(self._where):
                    return ""
                self.arena = Arena.attach(self._where, _AGAIN_S)
            arena = self.arena
            if arena.latest() == (newest[0].manifest.version if newest else None):
                return ""
            lease = arena.lease()
        except ReplacedError:
            for held in self._shelf.whole():
                self._shelf.remove(held)
            arena.close()
            self.arena = None
            return ""
        except RltraceError as error:  # it is damaged, or being removed
            return str(error)
        if lease is None:
            return ""
        if lease.manifest.root == NO_ROOT:
            lease.release()
            said = "a policy that is published without hashing cannot be served to other hosts"
            raise WrongUsage(said)
        fresh = HeldVersion.leased(lease, arena.layout)
        if newest:
            self._replace(newest[0], fresh)
        else:
            self._shelf.add(fresh)
        return ""

    def _replace(self, before: HeldVersion, fresh: HeldVersion) -> None:
        base, manifest = before.manifest.version, fresh.manifest
        encodes = base.run == manifest.version.run and self._wants_changes()
        if encodes:
            fresh.encode_against(base)
        self._shelf.add(fresh)
        if encodes:
            size = manifest.bytes
            with span("sync", "find changes", "convert", version=manifest.number, bytes=size):
                for block, width in enumerate(widths_of(fresh.layout)):
                    if self._ended.is_set():
                        return
                    part = slice(*block_range(block, size))
                    old, new = before.data[part], fresh.data[part]
                    fresh.put(block, self._encoder.encode(old, new, width))
        self._shelf.remove(before)


def widths_of(layout: Layout) -> list[int]:
    """The element width of each block, in bytes: that of most of its bytes."""
    pieces, widths = TensorPieces(layout), np.array([ITEM_BYTES[e.dtype] for e in layout.entries])
    shares = np.zeros((block_count(layout.bytes), 9), np.int64)
    np.add.at(shares, (pieces.offset // BLOCK_BYTES, widths[pieces.entry]), pieces.length)
    return [int(width) for width in shares.argmax(axis=1)]
