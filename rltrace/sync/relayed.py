"""Weights through relays: the learner's process serves its slots, and each host of rollout workers
has one relay that brings versions into slots there."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from torch import Tensor

from rltrace.sync.interface import Manifest
from rltrace.sync.joining import place_of
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
    `changes` only what differs from the version before is sent, where that is less."""

    def __init__(self, changes: bool) -> None:
        self._changes = changes
        self._following: dict[str, Subscriber] = {}  # a learner that died has left its address
        self._loading: dict[str, SharedMemorySubscriber] = {}
        self._lock = Lock()  # fetches run in threads

    def fetch(self, manifest: Manifest) -> None:
        """As `interface.Subscriber.fetch`. Errors: `RltraceError` where the learner's end is gone
        before this host had the version."""
        served: Served = manifest.location
        with self._lock:
            subscriber = self._following.get(served.address)
            if subscriber is None:
                subscriber = Subscriber.connect(
                    served.address, threads=1, token=served.token, changes=self._changes
                )
                self._following[served.address] = subscriber
            while True:
                try:
                    subscriber.wait(served.version, _LOOK_S)
                    return
                except RltraceError:
                    _check_alive(served)

    def load(self, fetched: None, manifest: Manifest, state: Mapping[str, Tensor]) -> int:
        """As `interface.Subscriber.load`: the latest version of this host."""
        place = place_of(manifest.location.address)
        loading = self._loading.setdefault(place, SharedMemorySubscriber())
        return loading.load(None, dataclasses.replace(manifest, location=place), state)

    def close(self) -> None:
        """Leaves; the last subscriber of a host ends its relay."""
        for subscriber in self._following.values():
            subscriber.close()


def _check_alive(served: Served) -> None:
    try:
        Connection.open(Address.parse(served.address), served.token.encode()).abort()
    except (LinkError, RefusedError) as error:
        said = f"version {served.version} is gone with its learner's end, {served.address}"
        raise RltraceError(f"{said}: {error}", CANNOT_TELL) from error
