"""What the machine itself can do, in the same run."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpu.children import synchronise
from benchmarks.gpu.report import Report, median, timed

_GIB = 1 << 30


class Floors:
    """Seconds that bytes take at the least, by plain copies of large buffers."""

    def __init__(self, report: Report, device: str, gib: float, reps: int) -> None:
        self._report, self._device, self._reps = report, device, reps
        self._bytes = int(min(4.0, gib / 3) * _GIB) // 16 * 16
        self._link_bytes = int(min(1.0, gib / 3) * _GIB) // 16 * 16
        self._rates: dict[str, float] = {}

    def measure(self) -> None:
        device = self._device
        one = torch.zeros(self._bytes, dtype=torch.uint8, device=device)
        other = torch.zeros_like(one)
        self._rate("copy", "copy on the device", self._bytes, partial(other.copy_, one))
        words, floats = one.view(torch.int64), one.view(torch.float32)
        self._rate("read", "read, int64 sum", self._bytes, words.sum)
        self._rate("read", "read, float32 maximum", self._bytes, floats.amax)
        here = torch.zeros(self._link_bytes, dtype=torch.uint8, pin_memory=device != "cpu")
        there = one[: self._link_bytes]
        size = self._link_bytes
        self._rate("down", "to page-locked memory", size, partial(here.copy_, there, True))
        self._rate("up", "from page-locked memory", size, partial(there.copy_, here, True))

    def copy_s(self, size: int) -> float:
        """A copy on the device."""
        return size / self._rates["copy"]

    def read_s(self, size: int) -> float:
        """Reading on the device, by the faster way."""
        return size / self._rates["read"]

    def down_s(self, size: int) -> float:
        """To the host."""
        return size / self._rates["down"]

    def up_s(self, size: int) -> float:
        """From the host."""
        return size / self._rates["up"]

    def _rate(self, kind: str, name: str, size: int, do: Callable[[], object]) -> None:
        def whole() -> None:
            do()
            synchronise(self._device)

        seconds = timed(whole, self._reps, warm=3)
        self._report.add(f"floor: {name}", seconds=seconds, bytes=size)
        self._rates[kind] = max(self._rates.get(kind, 0.0), size / median(seconds))


def shared_memory_gib() -> float:
    """What is free there."""
    room = os.statvfs("/dev/shm")
    return room.f_bavail * room.f_frsize / _GIB
