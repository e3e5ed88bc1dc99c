"""Weights through Ray's object store: a state dict as it is, or packed into one flat array."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rltrace.sync.bench.models import Model, Weights, digest
from rltrace.sync.bench.ways import OTHER_BITS, Receivers, Sender, Setting

if TYPE_CHECKING:
    from rltrace.sync.flat import Entry

_VERSIONS = 4
"""As many as the store has room for: one that is let go of is not gone at once."""


@dataclass(frozen=True)
class ObjectStore:
    """`flat`: packed into an array that is kept, put, and got without a copy."""

    flat: bool

    told_first = False

    @property
    def name(self) -> str:
        """As `Way.name`."""
        return "Ray, flat array" if self.flat else "Ray, state dict"

    def missing(self, receivers: int) -> str:
        """As `Way.missing`."""
        return "" if find_spec("ray") else "ray is not installed"

    def between_bytes(self, size_bytes: int, receivers: int) -> int:
        """As `Way.between_bytes`: in the array, and in the store."""
        return 2 * size_bytes if self.flat else size_bytes

    @contextmanager
    def session(self, model: Model) -> Iterator[None]:
        """As `Way.session`: a cluster of its own."""
        import ray

        os.environ.update({"RAY_memory_monitor_refresh_ms": "0"})
        folder = tempfile.mkdtemp(prefix="rltb-", dir="/tmp")  # its sockets want a short path
        try:
            ray.init(
                address="local",
                num_cpus=1,  # so many workers it starts at once; receivers reserve none
                object_store_memory=max(100 << 20, _VERSIONS * model.bytes),
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                _temp_dir=folder,
            )
            yield
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)

    def receivers(self, setting: Setting) -> Receivers:
        """As `Way.receivers`: actors."""
        return _Actors(setting, self.flat)

    def sender(self, setting: Setting) -> Sender:
        """As `Way.sender`."""
        return _Putting(self.flat)


class Receiver:
    """An actor with tensors of its own."""

    def __init__(self, setting: Setting, flat: bool) -> None:
        import torch

        from rltrace.sync.flat import layout_of

        torch.set_num_threads(setting.threads)
        self.weights = setting.model.made(OTHER_BITS)
        self.layout = layout_of(self.weights) if flat else ()

    def receive(self, told: list[Any]) -> float:
        """Brings the version of a reference into the tensors; returns when it was there."""
        import ray

        found = ray.get(told[0])
        parts = _parts(found, self.layout) if self.layout else found
        for name, tensor in self.weights.items():
            tensor.copy_(parts[name])
        return time.monotonic()

    def digest(self) -> str:
        """Of what it holds."""
        return digest(self.weights)


class _Actors:
    def __init__(self, setting: Setting, flat: bool) -> None:
        import ray

        kind = ray.remote(num_cpus=0, max_restarts=0)(Receiver)
        self._actors = [kind.remote(setting, flat) for _ in range(setting.receivers)]
        self._asked: list[Any] = []

    def wait_until_ready(self) -> None:
        self.digests()

    def tell(self, what: Any) -> None:
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
            from rltrace.sync.flat import layout_of, pack

            layout = layout_of(weights)
            self._packed = pack(weights, layout)
            self._parts = _parts(self._packed, layout)
        for name, tensor in weights.items():
            self._parts[name].copy_(tensor)
        return ray.put(self._packed)

    def close(self) -> None:
        pass


def _parts(packed: Any, layout: tuple[Entry, ...]) -> Weights:
    """The array's tensors, in place."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the store's memory is read-only, and is only read
        flat = torch.from_numpy(packed)
    return {
        e.name: flat[e.offset : e.offset + e.bytes].view(getattr(torch, e.dtype)).view(e.shape)
        for e in layout
    }
