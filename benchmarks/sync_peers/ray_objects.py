"""Weights through Ray's object store: a state dict as it is, or packed into one flat array."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.sync_bench.models import Model, Weights, digest
from benchmarks.sync_bench.ways import OTHER_BITS, BenchSetting, Crowd, Sender, Way

if TYPE_CHECKING:
    from rltrace.testing.inside.sync import Layout

_VERSIONS = 5
"""As many as the store has room for: one that is let go of is not gone at once."""


@dataclass(frozen=True)
class ObjectStore(Way):
    """`flat`: packed into an array that is kept, put, and got without a copy."""

    flat: bool

    told_first = False
    in_crowd = False

    @property
    def name(self) -> str:
        return "Ray, flat array" if self.flat else "Ray, state dict"

    def missing(self, receivers: int) -> str:
        return "" if find_spec("ray") else "ray is not installed"

    def between_bytes(self, size_bytes: int, receivers: int) -> int:
        return 2 * size_bytes if self.flat else size_bytes

    def copies(self, receivers: int) -> int:
        """Actors of its own; the store, which both share; the array."""
        return receivers + (_VERSIONS + 1 if self.flat else 0)

    @contextmanager
    def session(self, model: Model, folder: Path) -> Iterator[None]:
        """A cluster of its own, for both.

        Ray's own handlers of a signal may hang or abort. Its library's are put off by a variable,
        which it reads as it is imported; Python's are not set where the main thread does not begin.
        """
        os.environ.update(
            {"RAY_memory_monitor_refresh_ms": "0", "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1"}
        )
        import ray

        if ray.is_initialized():
            yield
            return
        options = {
            "address": "local",
            "num_cpus": 1,  # so many workers it starts at once; receivers reserve none
            "object_store_memory": max(100 << 20, _VERSIONS * model.bytes),
            "include_dashboard": False,
            "log_to_driver": False,
            "logging_level": "error",
            "_temp_dir": str(folder),  # its sockets want a short path
        }
        with ThreadPoolExecutor(1) as other:  # which stays: Ray's processes end with the thread
            try:
                other.submit(ray.init, **options).result()
                yield
            finally:
                ray.shutdown()

    def receivers(self, setting: BenchSetting, crowd: Crowd) -> Crowd:
        return _Actors(setting, self.flat)

    def sender(self, setting: BenchSetting) -> Sender:
        return Sender(_Putting(self.flat).send)


class Receiver:
    """An actor with tensors of its own."""

    def __init__(self, setting: BenchSetting, flat: bool) -> None:
        import torch

        from rltrace.sync import layout_of

        torch.set_num_threads(setting.threads)
        self.weights = setting.model.made(OTHER_BITS)
        self.layout = layout_of(self.weights) if flat else None

    def receive(self, told: list[Any]) -> float:
        """Brings the version of a reference into the tensors; returns when it was there."""
        import ray

        found = ray.get(told[0])
        parts = _parts(found, self.layout) if self.layout else found
        for name, tensor in self.weights.items():
            tensor.copy_(parts[name])
        return time.monotonic()

    def digest(self) -> str:
        return digest(self.weights)


class _Actors(Crowd):
    def __init__(self, setting: BenchSetting, flat: bool) -> None:
        import ray

        kind = ray.remote(num_cpus=0, max_restarts=0)(Receiver)
        self._actors = [kind.remote(setting, flat) for _ in range(setting.receivers)]
        self._asked: list[Any] = []
        self._turn = 0

    def begin(self, way: Way, setting: BenchSetting) -> None:
        pass

    def wait_until_ready(self) -> None:
        self.digests()

    def tell(self, setting: BenchSetting, what: Any) -> None:
        # In a list, so that each gets the reference itself.
        self._asked = [actor.receive.remote([what]) for actor in self._actors]

    def ends(self) -> list[float]:
        import ray

        asked, self._asked = self._asked, []
        return [float(end) for end in ray.get(asked)]

    def digests(self) -> list[str]:
        import ray

        return [str(found) for found in ray.get([a.digest.remote() for a in self._actors])]

    def close(self) -> None:
        import ray

        for actor in self._actors:
            ray.kill(actor)


class _Putting:
    def __init__(self, flat: bool) -> None:
        self._flat = flat
        self._packed: Any = None
        self._parts: Weights = {}

    def send(self, number: int, weights: Weights) -> Any:
        import ray

        if not self._flat:
            return ray.put(weights)
        if self._packed is None:
            from rltrace.sync import layout_of
            from rltrace.sync.flat_buffer import pack

            layout = layout_of(weights)
            self._packed = pack(weights, layout)
            self._parts = _parts(self._packed, layout)
        for name, tensor in weights.items():
            self._parts[name].copy_(tensor)
        return ray.put(self._packed)


def _parts(packed: Any, layout: Layout) -> Weights:
    """The array's tensors, in place; the store's memory is read-only, and is only read."""
    from rltrace.sync.memory.tensors import torch_view

    return {entry.name: torch_view(packed, entry) for entry in layout.entries}
