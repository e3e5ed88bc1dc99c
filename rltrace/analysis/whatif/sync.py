"""What it takes to move weights: by mechanism, by fan-out, and within a step (resharding)."""

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


def star_s(bytes: float, copies: int, bandwidth: float) -> float:
    """Seconds in which one sender of `bandwidth` bytes/s gives each of `copies` its own copy: the
    worst there is. Trees, rings and several senders make time nearly independent of the copies."""
    return bytes * copies / bandwidth


def tree_s(bytes: float, copies: int, bandwidth: float, latency_s: float) -> float:
    """The same through a pipelined tree: one transfer, and a latency for each level."""
    return latency_s * math.ceil(math.log2(max(2, copies))) + bytes / bandwidth


def reshard_bytes(
    scheme: str,
    model_bytes: float,
    tensor: int,
    pipeline: int,
    data: int,
    tensor_gen: int = 1,
    pipeline_gen: int = 1,
) -> float:
    """Bytes that each device receives on the way from training to generation (HybridFlow, arXiv
    2409.19256, table 2). `scheme`: "all-gather" over all devices (DeepSpeed-Chat), "within
    replica" (HybridFlow-V), or "grouped" (HybridFlow: only what a device's group lacks)."""
    ways = tensor * pipeline
    if scheme == "all-gather":
        return model_bytes * (ways * data - 1) / (ways * data)
    if scheme == "within replica":
        return model_bytes * (ways - 1) / ways
    if scheme == "grouped":
        parts = tensor_gen * pipeline_gen
        return model_bytes * (ways - parts) / (parts * ways)
    raise ValueError(f"there is no scheme {scheme!r}")
