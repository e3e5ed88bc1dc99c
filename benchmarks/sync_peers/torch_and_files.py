"""Ways that people move weights on one host without rltrace.sync, which torch has and files offer.

Each is written as its users write it, but for what costs them most: sides that can keep a buffer
keep it, packing and unpacking use as many threads as rltrace.sync does, and names are looked up
before. None of them checks what arrives.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.sync_bench.models import Weights
from benchmarks.sync_bench.ways import BenchSetting, Receive, Sender, Way

_PATIENCE = timedelta(seconds=300)


@dataclass(frozen=True)
class GlooPerTensor(Way):
    """A broadcast a tensor over torch.distributed's gloo."""

    name = "gloo, per tensor"

    def missing(self, receivers: int) -> str:
        import torch.distributed as dist

        return "" if dist.is_gloo_available() else "torch has no gloo here"

    def between_bytes(self, size_bytes: int, receivers: int) -> int:
        return size_bytes * receivers

    def sender(self, setting: BenchSetting) -> Sender:
        return Sender(_Broadcast(_joined(setting, 0)).send)

    def receiver(self, setting: BenchSetting, number: int, weights: Weights) -> Receive:
        group = _Broadcast(_joined(setting, number + 1))
        return lambda number: group.send(number, weights)


@dataclass(frozen=True)
class GlooFlat(GlooPerTensor):
    """One broadcast of a buffer that all sides keep, packed and unpacked by views."""

    name = "gloo, flat"

    def copies(self, receivers: int) -> int:
        """The buffers."""
        return 1 + receivers

    def sender(self, setting: BenchSetting) -> Sender:
        return Sender(_FlatBroadcast(_joined(setting, 0), is_source=True).send)

    def receiver(self, setting: BenchSetting, number: int, weights: Weights) -> Receive:
        group = _FlatBroadcast(_joined(setting, number + 1), is_source=False)
        return lambda number: group.send(number, weights)


@dataclass(frozen=True)
class Saved(Way):
    """A file a version in shared memory, read through a map of it; the one before is removed."""

    format: str

    told_first = False

    @property
    def name(self) -> str:
        return {"safetensors": "safetensors file", "torch": "torch.save"}[self.format]

    def missing(self, receivers: int) -> str:
        lacking = self.format == "safetensors" and find_spec("safetensors") is None
        return "safetensors is not installed" if lacking else ""

    def copies(self, receivers: int) -> int:
        """The file, and the one before."""
        return 2

    def sender(self, setting: BenchSetting) -> Sender:
        return Sender(_Files(Path(setting.folder), self._save()).send)

    def receiver(self, setting: BenchSetting, number: int, weights: Weights) -> Receive:
        import torch

        def from_torch(path: Any) -> None:
            for name, tensor in torch.load(path, mmap=True, weights_only=True).items():
                weights[name].copy_(tensor)

        def from_safetensors(path: Any) -> None:
            from safetensors import safe_open

            with safe_open(path, "pt") as file:
                for name, tensor in weights.items():
                    tensor.copy_(file.get_tensor(name))

        return from_torch if self.format == "torch" else from_safetensors

    def _save(self) -> Callable[[Weights, Path], object]:
        if self.format == "torch":
            import torch

            return torch.save
        from safetensors.torch import save_file

        return save_file


class _Broadcast:
    def __init__(self, group: Any) -> None:
        self._group = group

    def send(self, number: int, weights: Weights) -> None:
        import torch

        for tensor in weights.values():
            self._group.broadcast(tensor.view(-1).view(torch.uint8), 0).wait()


class _FlatBroadcast:
    def __init__(self, group: Any, is_source: bool) -> None:
        self._group, self._is_source = group, is_source
        self._flat: Any = None

    def send(self, number: int, weights: Weights) -> None:
        import torch

        plain = [tensor.view(-1).view(torch.uint8) for tensor in weights.values()]
        if self._flat is None:
            self._flat = torch.cat(plain)
        places = self._flat.split([tensor.numel() for tensor in plain])
        if self._is_source:
            torch._foreach_copy_(list(places), plain)
        self._group.broadcast(self._flat, 0).wait()
        if not self._is_source:
            torch._foreach_copy_(plain, list(places))


class _Files:
    def __init__(self, folder: Path, save: Callable[[Weights, Path], object]) -> None:
        self._folder = folder
        self._save = save

    def send(self, number: int, weights: Weights) -> str:
        path = self._folder / str(number)
        fresh = path.with_suffix(".new")
        self._save(weights, fresh)
        fresh.rename(path)
        (self._folder / str(number - 1)).unlink(missing_ok=True)
        return str(path)


def _joined(setting: BenchSetting, rank: int) -> Any:
    """A group of its own, beside any that the process has."""
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # not by whatever the host's name means
    rendezvous = f"{setting.folder}/rendezvous"
    store = dist.FileStore(rendezvous, setting.receivers + 1)  # type: ignore[attr-defined]
    return dist.ProcessGroupGloo(store, rank, setting.receivers + 1, _PATIENCE)
