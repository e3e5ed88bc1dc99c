"""What cannot be: stage seconds that would need more arithmetic than the devices have."""

from __future__ import annotations

import math

from rltrace.analysis.whatif.constants import Constants
from rltrace.trace.errors import WrongUsage

PEAK_TFLOPS = {"A100": 312.0, "H100": 989.0, "H200": 989.0, "H800": 989.0, "H20": 148.0}
"""Dense bf16 peak by device name: the vendors' data sheets."""

MEMORY_TB_PER_S = {"A100": 2.0, "H100": 3.35, "H200": 4.8, "H800": 3.35, "H20": 4.0}
"""Memory bandwidth by device name (of the 80 GB A100): the vendors' data sheets."""

TRAIN_FLOP = 6.0  # for each parameter and token: forward 2, backward 4


def train_mfu(
    parameters: float, tokens: float, seconds: float, devices: float, peak_tflops: float
) -> float:
    """Part of the devices' peak that training on `tokens` tokens in `seconds` takes; of a mixture
    of experts the active parameters count. Attention is left out, so it is a lower bound."""
    return TRAIN_FLOP * parameters * tokens / (seconds * devices * peak_tflops * 1e12)


def refuse_impossible(
    parameters: float, tokens: float, seconds: float, devices: float, device: str
) -> None:
    """Errors: `RltraceError` where a learner step would need more than any job reaches."""
    peak = PEAK_TFLOPS.get(device, math.nan)
    if not seconds * devices:
        return
    mfu = train_mfu(parameters, tokens, seconds, devices, peak)
    most = Constants()["highest_mfu"]
    if mfu > most:
        least_s = mfu * seconds / most
        raise WrongUsage(
            f"a learner step of {seconds:g} s is refused: {tokens:,.0f} tokens through "
            f"{parameters / 1e9:g}B parameters on {devices:g} {device} would be "
            f"{100 * mfu:.0f} % MFU; above {100 * most:.0f} % nothing runs, so it takes at least "
            f"{least_s:.1f} s"
        )


# --- what it takes to move weights, by mechanism

MECHANISMS = ("naive", "bucketed", "relay", "delta", "direct")
"""Tensor by tensor; in buckets by NCCL; pipelined through relays; changes only; RDMA from shard to
sink. The link says little: published figures of one mechanism lie within a factor of a few, those
of all over three orders of magnitude."""


def weight_bytes(parameters: float, bytes_each: float = 2.0) -> float:
    """Bytes of one copy of the weights; of a mixture of experts all parameters count."""
    return parameters * bytes_each


def transfer_s(
    mechanism: str, bytes: float, constants: Constants, most_fixed_s: float = math.inf
) -> float:
    """Seconds of one update that moves `bytes`, however many receive it. `most_fixed_s` is what the
    job's own updates take beside the transfer: another mechanism adds no more to it."""
    bandwidth = 1e9 * constants[f"{mechanism}_gb_per_s"]
    return min(constants["sync_latency_s"], most_fixed_s) + bytes / bandwidth
