"""Weights through relays: the learner's process serves its slots, and each host of rollout workers
has one relay that brings versions into slots there."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Lock

from torch import Tensor

from rltrace.sync.interface import Manifest
from rltrace.sync.joining import place_of
from rltrace.sync.locks import or_else
from rltrace.sync.relay import Relay
from rltrace.sync.shared_memory import SharedMemoryPublisher, SharedMemorySubscriber
from rltrace.sync.subscriber import Subscriber
from rltrace.sync.version import Version
from rltrace.sync.wire import Address, Connection, LinkError, RefusedError
from rltrace.trace.errors import CANNOT_TELL, RltraceError

_LOOK_S = 1.0


@dataclass(frozen=True)
class Served:
    """Where a version can be had, and the secret that it takes."""

    address: str
    token: str
    version: Version


class RelayedPublisher(SharedMemoryPublisher):
    """Publishes into slots at `where`, and serves them to other hosts at `host`, which is an
    address of this one. `gbps` is how many 10⁹ bits a second it sends at most; 0: no limit."""

    def __init__(self, where: str, host: str, gbps: float = 0.0) -> None:
        super().__init__(where)
        self._host, self._gbps = host, gbps
        self._token = secrets.token_hex(32)
        self._relay: Relay | None = None

    def publish(self, version: int, state: Mapping[str, Tensor]) -> Manifest:
        """As `SharedMemoryPublisher.publish`. Errors: `RltraceError` where nobody can listen."""
        manifest = super().publish(version, state)
        if self._relay is None:
            self._relay = Relay.serve(self.where, self._host, gbps=self._gbps, token=self._token)
        assert self.published is not None
        served = Served(self._relay.address, self._token, self.published)
        return dataclasses.replace(manifest, location=served)


class RelayedSubscriber:
    """Receives by `fetch`, which waits for this host's relay, and `load`, from its slots. With
    `changes` only what differs from the version before is sent, where that is less.

    A learner that takes a dead one's place has another address: once a version of it is here, the
    relay that followed the dead one is left, and ends when all workers of this host have left it.
    """

    def __init__(self, changes: bool) -> None:
        self._changes = changes
        self._arriving: Subscriber | None = None  # of the learner whose version is here
        self._loading = SharedMemorySubscriber()
        self._newest = -1  # of all that was fetched
        self._fetching = Lock()  # fetches run in threads, beside a load, which has slots of its own
        self._switching = Lock()  # what is loaded from is not left meanwhile

    def fetch(self, manifest: Manifest) -> None:
        """As `interface.Subscriber.fetch`; one that was overtaken by a newer one is not waited for.
        Errors: `RltraceError` where the learner's end is gone before this host had the version."""
        served: Served = manifest.location
        with self._fetching:
            if manifest.version < self._newest:
                return
            before = arriving = self._arriving
            if arriving is None or arriving.where != served.address:
                arriving = Subscriber.connect(
                    served.address, threads=1, token=served.token, changes=self._changes
                )
            with nullcontext() if arriving is before else or_else(arriving.close):
                _wait(arriving, served)
            self._newest = manifest.version
            if arriving is not before:
                with self._switching:
                    self._arriving = arriving
                    self._loading.close()
                if before is not None:
                    before.close()

    def load(self, fetched: None, manifest: Manifest, state: Mapping[str, Tensor]) -> int:
        """As `interface.Subscriber.load`: the latest version of this host."""
        with self._switching:
            assert self._arriving is not None, "a version was fetched"
            here = dataclasses.replace(manifest, location=place_of(self._arriving.where))
            return self._loading.load(None, here, state)

    def close(self) -> None:
        """Leaves; the last subscriber of a host ends its relay."""
        self._loading.close()
        if self._arriving is not None:
            self._arriving.close()


def _wait(arriving: Subscriber, served: Served) -> None:
    """Until the version is here. Errors: `RltraceError` where it is gone."""
    while True:
        try:
            arriving.wait(served.version, _LOOK_S)
            return
        except RltraceError:
            try:
                Connection.open(Address.parse(served.address), served.token.encode()).abort()
            except (LinkError, RefusedError) as error:
                said = f"version {served.version} is gone with its learner's end, {served.address}"
                raise RltraceError(f"{said}: {error}", CANNOT_TELL) from error
