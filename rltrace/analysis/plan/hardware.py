"""GPUs and how they are joined: the table of data sheets, overridable."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from rltrace.analysis.plan.constants import named, packaged
from rltrace.trace.errors import WrongUsage

_COUNTED = re.compile(r"([1-9]\d{0,5})\s*[x×]\s*(.+)", re.IGNORECASE)


@dataclass(frozen=True)
class Gpu:
    """A GPU. `near_gb_per_s` is to another one of its node, `far_gb_per_s` of its own network
    adapter, `host_gb_per_s` to the host's memory, each one way; `node` how many a node holds."""

    name: str
    tflops: float
    memory_gb: float
    memory_tb_per_s: float
    near_gb_per_s: float
    far_gb_per_s: float
    host_gb_per_s: float
    node: int

    @property
    def peak(self) -> float:
        """Dense bf16, FLOP/s."""
        return self.tflops * 1e12

    @property
    def memory_bytes(self) -> float:
        return self.memory_gb * 1e9

    @property
    def bandwidth(self) -> float:
        """Bytes/s of its memory."""
        return self.memory_tb_per_s * 1e12

    def link(self, devices: float) -> float:
        """Bytes/s, one way, that a GPU has to the others of a group of so many."""
        return 1e9 * (self.near_gb_per_s if devices <= self.node else self.far_gb_per_s)


def counted(text: str) -> tuple[int, Gpu]:
    """`32xH100` -> 32 and the GPU. Errors: `RltraceError`, one sentence, for anything else."""
    found = _COUNTED.fullmatch(text.strip())
    if not found:
        raise WrongUsage(f"--gpus must be like 32xH100, of 1 to 999,999, not {text!r}")
    known = _known().get(_key(found[2]))
    if known is None:
        names = ", ".join(entry["name"] for entry in packaged("hardware")["gpu"])
        raise WrongUsage(
            f"the GPU {found[2]!r} is not in the table ({names}): name one that is near it, and "
            "its figures in a workload file, [gpu]"
        )
    return int(found[1]), known


def of_driver(name: str) -> Gpu | None:
    """The GPU that a driver's name means; None: none is known."""
    said = _key(name)
    return next((_known()[key] for key in sorted(_known(), key=len)[::-1] if key in said), None)


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("nvidia"))


@cache
def _known() -> dict[str, Gpu]:
    return {key: Gpu(**one) for key, one in named(packaged("hardware")["gpu"], _key).items()}


def powers_of_two(most: int) -> list[int]:
    """Into how many equal parts so many devices are split, at most."""
    return [2**i for i in range(most.bit_length())]


# --- collectives as latency plus bytes over bandwidth (nccl-tests, PERFORMANCE.md): seconds for
# `size` bytes over `devices` GPUs of `bandwidth` bytes/s each, one way, and `latency_s` a round.


def all_gather_s(size: float, devices: float, bandwidth: float) -> float:
    """Everybody gets the whole, `size`, of which it holds a part; a reduce-scatter is the same."""
    return size * max(0.0, devices - 1) / (devices * bandwidth)


def all_reduce_s(size: float, devices: float, bandwidth: float, latency_s: float = 0.0) -> float:
    """A reduce-scatter and an all-gather."""
    return latency_s + 2 * all_gather_s(size, devices, bandwidth) if devices > 1 else 0.0
