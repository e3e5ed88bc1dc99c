"""Collectives as latency plus bytes over bandwidth (nccl-tests, PERFORMANCE.md): seconds for `size`
bytes over `devices` GPUs of `bandwidth` bytes/s each, one way, and `latency_s` a round."""

from __future__ import annotations

import math


def all_gather_s(size: float, devices: float, bandwidth: float, latency_s: float = 0.0) -> float:
    """Everybody gets the whole, `size`, of which it holds a part; a reduce-scatter is the same."""
    if devices <= 1:
        return 0.0
    return latency_s + size * (devices - 1) / (devices * bandwidth)


def all_reduce_s(size: float, devices: float, bandwidth: float, latency_s: float = 0.0) -> float:
    """A reduce-scatter and an all-gather."""
    if devices <= 1:
        return 0.0
    return latency_s + 2 * size * (devices - 1) / (devices * bandwidth)


def broadcast_s(size: float, devices: float, bandwidth: float, latency_s: float = 0.0) -> float:
    """One gives to all others, pipelined: nearly independent of how many they are."""
    if devices <= 1:
        return 0.0
    return latency_s * math.ceil(math.log2(devices)) + size / bandwidth
