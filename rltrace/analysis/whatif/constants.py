"""What predictions rest on beyond the workload: packaged constants, and limits of devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rltrace.trace.untrusted_files import packaged_toml


@dataclass(frozen=True)
class Constant:
    """A constant; `meaning` says its unit, `source` where it is from."""

    name: str
    low: float
    middle: float
    high: float
    meaning: str
    source: str

    def sentence(self) -> str:
        """The constant as people read it."""
        return f"{self.name} = {self.middle:g} ({self.low:g} to {self.high:g}): {self.meaning}"


def constants_in(tables: dict[str, Any]) -> dict[str, Constant]:
    """The constants that the tables of a file are, by name."""
    return {name: Constant(name, **one) for name, one in tables.items() if isinstance(one, dict)}


@cache
def table() -> dict[str, Constant]:
    """All packaged constants by name."""
    return constants_in(packaged_toml("analysis/data/whatif.toml"))


@dataclass
class Constants:
    """The middle of each constant, but for those in `moved`; `used` are those that were read: a
    prediction moves exactly these over their range, and names them."""

    moved: dict[str, float] = field(default_factory=dict)
    used: dict[str, None] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        self.used[name] = None
        return self.moved.get(name, table()[name].middle)


# --- what devices can do, and what it takes to move weights

PEAK_TFLOPS = {"A100": 312.0, "H100": 989.0, "H200": 989.0, "H800": 989.0, "H20": 148.0}
"""Dense bf16 peak by device name: the vendors' data sheets."""

TRAIN_FLOP = 6.0  # for each parameter and token: forward 2, backward 4


def train_mfu(
    parameters: float, tokens: float, seconds: float, devices: float, peak_tflops: float
) -> float:
    """Part of the devices' peak that training on `tokens` tokens in `seconds` takes; of a mixture
    of experts the active parameters count. Attention is left out, so it is a lower bound."""
    return TRAIN_FLOP * parameters * tokens / (seconds * devices * peak_tflops * 1e12)


MECHANISMS = ("naive", "bucketed", "relay", "delta", "direct")
"""Tensor by tensor; in buckets by NCCL; pipelined through relays; changes only; RDMA from shard to
sink. The link says little: published figures of one mechanism lie within a factor of a few, those
of all over three orders of magnitude."""


def weight_bytes(parameters: float) -> float:
    """Bytes of one copy of the weights, in bf16; of a mixture of experts all parameters count."""
    return 2.0 * parameters


def transfer_s(
    mechanism: str, bytes: float, constants: Constants, most_fixed_s: float = math.inf
) -> float:
    """Seconds of one update that moves `bytes`, however many receive it. `most_fixed_s` is what the
    job's own updates take beside the transfer: another mechanism adds no more to it."""
    bandwidth = 1e9 * constants[f"{mechanism}_gb_per_s"]
    return min(constants["sync_latency_s"], most_fixed_s) + bytes / bandwidth


def packaged(name: str) -> dict[str, Any]:
    """One of the plan's data files, as its tables stand."""
    return packaged_toml(f"analysis/plan/data/{name}.toml")


def named(entries: list[dict[str, Any]], key: Callable[[str], str]) -> dict[str, dict[str, Any]]:
    """The entries of a data file by the keys of their name and of their other ones."""
    return {
        key(name): {what: value for what, value in entry.items() if what != "also"}
        for entry in entries
        for name in (entry["name"], *entry.get("also", ()))
    }


@cache
def plan_table() -> dict[str, Constant]:
    """Constants by name: those of the replay, and over them the plan's own."""
    return {**table(), **constants_in(packaged("constants"))}


@dataclass
class PlanConstants(Constants):
    """The middle of each constant, but for those in `moved`; `used` are those that were read."""

    def __getitem__(self, name: str) -> float:
        self.used[name] = None
        return self.moved.get(name, plan_table()[name].middle)
