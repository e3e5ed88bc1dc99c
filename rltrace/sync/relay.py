"""One process a node that always holds a whole verified version, and passes versions on.

The first node serves the publisher's own slots (`Relay.serve`); every other one follows a parent
(`Relay.follow`), fills slots of its own host, from which the rollout workers there pull, and serves
children. In a chain a version takes hardly longer than over one hop, and the learner's host sends
it once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic, sleep

from rltrace.sync.following import Follower, Received, why_not
from rltrace.sync.landing import Landing
from rltrace.sync.locks import Closing
from rltrace.sync.place import folder_of
from rltrace.sync.serving import Node, Server
from rltrace.sync.shelf import Shelf
from rltrace.sync.sourcing import Source
from rltrace.sync.version import Behind, Manifest, Version
from rltrace.sync.wire import Address, token_of
from rltrace.trace.errors import CANNOT_TELL, RltraceError

_POLL_S = 0.002
_PATIENCE_S = 1.0


@dataclass(frozen=True)
class Status:
    """What a relay does now. `parent` is "" for the one that serves the publisher's own slots;
    `lost` counts the parents that it lost, `sent_bytes` what it sent to its children. `troubles` is
    why each node that it could follow cannot be followed now, by address; empty while one is.
    `behind`: how far what it has is behind the learner."""

    manifest: Manifest | None
    parent: str
    children: int
    lost: int
    sent_bytes: int
    troubles: Mapping[str, str]
    behind: Behind


class Relay(Closing):
    """A node. Everything runs in threads of this process, which end with `close`."""

    def __init__(self, shelf: Shelf, server: Server, work: Source | Follower) -> None:
        self._shelf = shelf
        self._server = server
        self._work = work
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
        server = Server(shelf, policy, host, port, secret, fanout, gbps)
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
        server = Server(shelf, address.policy, host, port, secret, fanout, gbps)
        work = Follower(address, landing, Node(server.id, str(server.address)), on_received)
        server.line, server.behind = lambda: work.line, work.behind
        return Relay(shelf, server, work)

    @property
    def address(self) -> str:
        """What children follow: `tcp://host:port/policy`. The policy has the publisher's name for
        it, whatever the place here is called."""
        return str(self._server.address.told)

    @property
    def on_all_networks(self) -> bool:
        """Whether it can be reached at every address of this host."""
        return self._server.address.on_all_networks

    @property
    def status(self) -> Status:
        """What it does now."""
        whole = self._shelf.whole()
        follower = self._work if isinstance(self._work, Follower) else None
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
        """For how long newer weights have not been able to come here; 0.0 while they can."""
        return self._work.behind().seconds

    @property
    def error(self) -> RltraceError | None:
        """What keeps newer weights from coming here, or has ended this relay; None while nothing
        does."""
        return self.ended_by or self._work.behind().error(self.address)

    @property
    def ended_by(self) -> RltraceError | None:
        """What has ended this relay; None while it works."""
        return self._work.ended_by

    def close(self) -> None:
        """Ends it. Rollout workers of this host keep the latest version."""
        self._server.close()
        self._work.stop()
        self._shelf.close()
        if self._work.arena is not None:
            self._work.arena.close()


class Reach:
    """A relay's parents as its user hears of them: what keeps all of them from being followed, each
    reason once, and that one is followed again."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._told: set[str] = set()

    def news(self, status: Status) -> str | None:
        """What is new in the status of now: a line, or None."""
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
