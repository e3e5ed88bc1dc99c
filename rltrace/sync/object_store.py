"""Weights through Ray's object store, as one buffer a version."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import ray
from numpy.typing import NDArray
from torch import Tensor

from rltrace.sync.flat_buffer import pack, unpack
from rltrace.sync.memory.layout import Layout, layout_of
from rltrace.sync.transports import PublishedVersion


class ObjectStorePublisher:
    def publish(self, version: int, state: Mapping[str, Tensor]) -> PublishedVersion:
        """As `Publisher.publish`. The version lives as long as someone holds its manifest."""
        layout = layout_of(state)
        buffer = self.gather(state, layout)
        return PublishedVersion(version, layout, buffer.nbytes, location=self.put(buffer))

    def gather(self, state: Mapping[str, Tensor], layout: Layout) -> NDArray[np.uint8]:
        return pack(state, layout)

    def put(self, buffer: NDArray[np.uint8]) -> ray.ObjectRef:
        return ray.put(buffer)


class ObjectStoreSubscriber:
    """Receives by `fetch`, at `gbps` 10⁹ bits a second (0: at any rate), and `load`."""

    def __init__(self, gbps: float = 0.0) -> None:
        self.gbps = gbps

    def fetch(self, manifest: PublishedVersion) -> NDArray[np.uint8]:
        """As `Subscriber.fetch`: the buffer is mapped read-only from the object store."""
        started = time.perf_counter()
        # Not `ray.get`: it complains in an asynchronous actor, even when another thread calls it.
        buffer: NDArray[np.uint8] = manifest.location.future().result()
        if self.gbps:
            due = started + manifest.bytes * 8 / (self.gbps * 1e9)
            time.sleep(max(0.0, due - time.perf_counter()))
        return buffer

    def load(
        self, fetched: NDArray[np.uint8], manifest: PublishedVersion, state: Mapping[str, Tensor]
    ) -> int:
        assert manifest.layout is not None
        unpack(fetched, manifest.layout, state)
        return manifest.version
