"""Weights through slots in shared memory: learner and rollout workers are on one host."""

from __future__ import annotations

import time
from collections.abc import Mapping

from torch import Tensor

from rltrace.sync.interface import Manifest
from rltrace.sync.layout import layout_of
from rltrace.sync.publisher import Publisher
from rltrace.sync.subscriber import Subscriber
from rltrace.sync.version import Version
from rltrace.trace.errors import CANNOT_TELL, RltraceError

_PATIENCE_S = 60.0


class SharedMemoryPublisher:
    """Publishes into slots at `where`, which are made for the first version."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.published: Version | None = None
        """The last version, under the name that slots know it by."""
        self._publisher: Publisher | None = None

    def publish(self, version: int, state: Mapping[str, Tensor]) -> Manifest:
        """As `interface.Publisher.publish`. The version lives until the one after the next.

        Errors: `RltraceError` where workers hold all slots for a minute.
        """
        if self._publisher is None:
            self._publisher = Publisher.open(
                layout_of(state), self.where, patience_s=_PATIENCE_S, threads=1
            )
        self.published = self._publisher.publish(state, step=version)
        if self.published is None:
            said = f"no slot for version {version} of the weights was free for {_PATIENCE_S:g} s"
            raise RltraceError(said, CANNOT_TELL)
        return Manifest(version, None, self._publisher.layout.bytes, location=self.where)


class SharedMemorySubscriber:
    """Receives by `load`, straight from the slot; there is nothing to fetch on the same host.

    `gbps` has a fetch take as long as a link of that many 10⁹ bits a second would; 0 does not.
    """

    def __init__(self, gbps: float = 0.0) -> None:
        self.gbps = gbps
        self._subscriber: Subscriber | None = None

    def fetch(self, manifest: Manifest) -> None:
        """As `interface.Subscriber.fetch`."""
        if self.gbps:
            time.sleep(manifest.bytes * 8 / (self.gbps * 1e9))

    def load(self, fetched: None, manifest: Manifest, state: Mapping[str, Tensor]) -> int:
        """As `interface.Subscriber.load`: the latest version that there is. Errors: also where the
        learner is on another host."""
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
