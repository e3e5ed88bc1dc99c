"""What others do: a handle for each tensor (as verl and slime pass them), verl's buckets, files;
and a group of one, which has no peer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from torch.multiprocessing.reductions import reduce_tensor

from benchmarks.gpu import models
from benchmarks.gpu.children import Child, synchronise
from benchmarks.gpu.report import Report, timed
from rltrace.sync import Group, Publisher, layout_of
from rltrace.testing.inside.sync import Address, store_at

_BUCKET_BYTES = 512 << 20  # verl's own default


class Handles:
    """Each tensor's handle, anew in each update; the receiver copies from it."""

    def __init__(self, worker: Child, weights: models.Weights) -> None:
        self._worker, self._weights = worker, weights

    def update(self) -> None:
        handles = [reduce_tensor(tensor) for tensor in self._weights.values()]
        self._worker.ask("take_handles", handles, patience_s=60)

    def close(self) -> None:
        pass


class Buckets:
    """One buffer, opened once by the receiver: filled with tensor after tensor, emptied, and filled
    again once the receiver says so. A tensor that fits in none is an error, as with verl."""

    def __init__(self, worker: Child, weights: models.Weights, device: str) -> None:
        self._worker, self._weights, self._device = worker, weights, device
        largest = max(tensor.nbytes for tensor in weights.values())
        size = max(_BUCKET_BYTES if device != "cpu" else 4 << 20, largest)
        self._bucket: Any = torch.empty(size, dtype=torch.uint8, device=device)
        self._is_open = False

    def update(self) -> None:
        if not self._is_open:
            self._worker.ask("open_bucket", reduce_tensor(self._bucket))
            self._is_open = True
        parts: list[tuple[str, int, int]] = []
        end = 0
        for name, tensor in self._weights.items():
            if end + tensor.nbytes > len(self._bucket):
                self._send(parts)
                parts, end = [], 0
            begin, end = end, end + tensor.nbytes
            flat = tensor.view(-1).view(torch.uint8)
            self._bucket[begin:end].copy_(flat, non_blocking=True)
            parts.append((name, begin, end))
            end = -(-end // 16) * 16
        self._send(parts)

    def close(self) -> None:
        self._bucket = None

    def _send(self, parts: list[tuple[str, int, int]]) -> None:
        synchronise(self._device)
        self._worker.ask("take_bucket", parts)


def files(report: Report, weights: models.Weights, device: str, name: str, reps: int) -> None:
    """A file in shared memory, written and read back to the device."""
    from safetensors.torch import load_file, save_file

    size, file = models.bytes_of(weights), Path("/dev/shm") / f"{name}.weights"
    here = {key: torch.zeros_like(tensor) for key, tensor in weights.items()}

    def by_torch() -> None:
        torch.save(weights, file)
        for key, tensor in torch.load(file, map_location=device, mmap=True).items():
            here[key].copy_(tensor)
        synchronise(device)

    def by_safetensors() -> None:
        save_file(weights, file)
        for key, tensor in load_file(file, device=device).items():
            here[key].copy_(tensor)
        synchronise(device)

    try:
        for said, way in (("torch.save", by_torch), ("safetensors", by_safetensors)):
            seconds = timed(way, reps, warm=1)
            report.add(f"{said}, there and back", seconds=seconds, bytes=size)
            same = models.sum_of(here) == models.sum_of(weights)
            report.add(f"{said}: what came is what was sent", holds=same)
    finally:
        file.unlink(missing_ok=True)


class _Alone(Group):
    """A group that sends, although nobody is there to receive."""

    _LEAST = 1

    def _all_can(self, manifest: Any) -> bool:
        return True


def group_of_one(report: Report, cpu: bool, name: str) -> None:
    """Errors: whatever NCCL has against it."""
    weights = {"a": torch.arange(48 << 20, dtype=torch.int8)}
    where = f"shm://{name}-group"
    if cpu:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    port = _free_port()
    address = f"tcp://127.0.0.1:{port}/{name}-group"
    with Publisher.open(layout_of(weights), where) as publisher:
        version = publisher.publish(weights, 1)
        store = store_at(Address.parse(address), 0, 1, 20.0)
        backend = "gloo" if cpu else "nccl"
        with _Alone(store, 0, 1, where, backend, 20.0) as group:
            moved = group.move()
    report.add(f"a group of one by {backend}", value=str(moved == version), holds=moved == version)


def _free_port() -> int:
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
