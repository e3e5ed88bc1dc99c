"""What every way of moving weights offers: publishers and subscribers."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

from torch import Tensor

from rltrace.sync.memory.layout import Layout, layout_of
from rltrace.sync.memory.locks import or_else
from rltrace.sync.publisher import Publisher
from rltrace.sync.subscriber import Subscriber
from rltrace.sync.transfer.relay import Relay
from rltrace.sync.transfer.shared_relay import place_of
from rltrace.sync.transfer.wire import Address, Connection, LinkError, RefusedError
from rltrace.sync.version import Version
from rltrace.trace.errors import CANNOT_TELL, RltraceError

_PATIENCE_S = 60.0
_LOOK_S = 1.0


@dataclass(frozen=True)
class PublishedVersion:
    version: int
    layout: Layout | None  # of the buffer that is fetched; None where none is
    bytes: int
    location: Any  # of the transport's own kind; subscribers of the same transport understand it


class WeightPublisher(Protocol):
    def publish(self, version: int, state: Mapping[str, Tensor]) -> PublishedVersion:
        """Takes a copy of `state`, whole, as `version`: then the tensors may change."""


class WeightSubscriber(Protocol):
    """A rollout worker's side, in two parts: the first may run beside generation."""

    def fetch(self, manifest: PublishedVersion) -> Any:
        """Brings a version near this process, for `load`. Nothing is overwritten yet."""

    def load(self, fetched: Any, manifest: PublishedVersion, state: Mapping[str, Tensor]) -> int:
        """Overwrites the tensors of `state`. Returns their version: the manifest's, or a later one.
        Errors: `RltraceError` where names, shapes or types differ; then nothing was overwritten."""


class SharedMemoryPublisher:
    """Publishes into slots at `where`, which are made for the first version."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.published: Version | None = None  # the last one, under the name that slots know it by
        self._publisher: Publisher | None = None

    def publish(self, version: int, state: Mapping[str, Tensor]) -> PublishedVersion:
        """It lives until the version after the next. Errors: `RltraceError` without a free slot."""
        if self._publisher is None:
            layout = layout_of(state)
            self._publisher = Publisher.open(layout, self.where, patience_s=_PATIENCE_S, threads=1)
        self.published = self._publisher.publish(state, step=version)
        if self.published is None:
            said = f"no slot for version {version} of the weights was free for {_PATIENCE_S:g} s"
            raise RltraceError(said, CANNOT_TELL)
        return PublishedVersion(version, None, self._publisher.layout.bytes, location=self.where)


class SharedMemorySubscriber:
    """Receives by `load`, straight from the slot; there is nothing to fetch on the same host.
    `gbps` has a fetch take as long as a link of that many 10⁹ bits a second would; 0 does not."""

    def __init__(self, gbps: float = 0.0) -> None:
        self.gbps = gbps
        self._subscriber: Subscriber | None = None

    def fetch(self, manifest: PublishedVersion) -> None:
        if self.gbps:
            time.sleep(manifest.bytes * 8 / (self.gbps * 1e9))

    def load(self, fetched: None, manifest: PublishedVersion, state: Mapping[str, Tensor]) -> int:
        """Loads the latest version. Errors: also where the learner is on another host."""
        if self._subscriber is None:
            self._subscriber = Subscriber.connect(manifest.location, timeout_s=0.0, threads=1)
        self._subscriber.pull_into(state)
        applied = self._subscriber.applied
        assert applied is not None
        return applied.step

    def close(self) -> None:
        """Lets go of the slots; the next load connects anew."""
        if self._subscriber is not None:
            self._subscriber.close()
            self._subscriber = None


@dataclass(frozen=True)
class Served:
    address: str
    token: str
    version: Version


class RelayedPublisher(SharedMemoryPublisher):
    """Publishes at `where`, and serves it at `host`, at `gbps` 10⁹ bits/s or less (0: any rate)."""

    def __init__(self, where: str, host: str, gbps: float = 0.0) -> None:
        super().__init__(where)
        self._host, self._gbps = host, gbps
        self._token = secrets.token_hex(32)
        self._relay: Relay | None = None

    def publish(self, version: int, state: Mapping[str, Tensor]) -> PublishedVersion:
        """Errors: `RltraceError`, also where nobody can listen."""
        manifest = super().publish(version, state)
        if self._relay is None:
            self._relay = Relay.serve(self.where, self._host, gbps=self._gbps, token=self._token)
        assert self.published is not None
        served = Served(self._relay.address, self._token, self.published)
        return dataclasses.replace(manifest, location=served)


class RelayedSubscriber:
    """Receives by `fetch`, which waits for this host's relay, and `load`, from its slots. A learner
    that takes a dead one's place has another address: the dead one's relay is left for it."""

    def __init__(self, changes: bool) -> None:
        self._changes = changes
        self._arriving: Subscriber | None = None  # of the learner whose version is here
        self._loading = SharedMemorySubscriber()
        self._newest = -1  # of all that was fetched
        self._fetching = Lock()  # fetches run in threads, beside a load, which has slots of its own
        self._switching = Lock()  # what is loaded from is not left meanwhile

    def fetch(self, manifest: PublishedVersion) -> None:
        """Waits for it, unless overtaken. Errors: `RltraceError` where the learner is gone."""
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

    def load(self, fetched: None, manifest: PublishedVersion, state: Mapping[str, Tensor]) -> int:
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
