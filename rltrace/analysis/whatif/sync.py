"""What it takes to move weights, by mechanism."""

from __future__ import annotations

import math

from rltrace.analysis.whatif.constants import Constants

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
