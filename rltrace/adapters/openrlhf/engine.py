"""Readers of weights that arrive in a rollout actor and vLLM's worker.

OpenRLHF sends each tensor with a remote call of its own, the last one with `empty_cache`. There may
be ten thousand: an update is one span and one row, and what the calls cost is two counters.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from rltrace.adapters.table.logged import record_figures
from rltrace.adapters.table.weights import weights_moved
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import SyncRole, Transport

WHOLE = "rltrace.sync "
"""How the name of what is no tensor, but a whole version, begins (`rltrace.plugins.openrlhf`)."""

_STAGE = f"{WHOLE}stage "

RPC_SECONDS = "weights/rpc_seconds"
"""Counter of a rollout actor, cumulative, read with each update: the time of the calls that bring
it one tensor each. What it has beyond `WORKER_SECONDS` is the price of the calls themselves."""

WORKER_SECONDS = "weights/worker_seconds"
"""Counter of vLLM's worker, likewise: the time in which it received a tensor and loaded it. On a
GPU that is the host's part, as both are only begun there."""

_LANE = 1  # each call is a task of its own; the span of an update belongs to none of them


class _ArrivingUpdate:
    def __init__(self, name: str) -> None:
        self.first = name
        self.span: Any = None
        self.start_ns = -1
        self.tensors = self.bytes = 0


_update: list[_ArrivingUpdate] = []
_spent_ns = {RPC_SECONDS: 0, WORKER_SECONDS: 0}
_done: deque[tuple[int, int]] = deque(maxlen=1024)  # (when, version) of the latest updates


def started(call: Call) -> None:
    """The weights that the engine was started with are version 0."""
    if call.exception is None:
        call.recorder.version = 0


def version_at(time_ns: int, otherwise: int) -> int:
    """The version of the engine's weights at a time (monotonic ns) in this process."""
    for when, version in reversed(_done):
        if when <= time_ns:
            return version
    return _done[0][1] - 1 if _done else otherwise


def tensor_stage(call: Call) -> str | None:
    """The first tensor of an update begins its span. One that was broken off begins anew with the
    same tensor, or a version that is staged."""
    name = str(call.argument("name"))
    if not _update or _update[0].first == name or name.startswith(_STAGE):
        _update[:] = [_ArrivingUpdate(name)]
        return "sync"
    return None


def tensor_comes(call: Call) -> None:
    """`update_weight(name, dtype, shape, ...)`"""
    update = _update[0]
    if call.span is not None:
        update.span, update.start_ns = call.span, call.start_ns
        call.span.set(lane=_LANE)
    update.tensors += not str(call.argument("name")).startswith(_STAGE)
    update.bytes += math.prod(call.argument("shape")) * call.argument("dtype").itemsize


def tensor_loaded(call: Call) -> None:
    """One tensor has arrived; with the last one the new version is there."""
    update = _update[0]
    _spent_ns[RPC_SECONDS] += call.end_ns - call.start_ns
    update.span.set(end_ns=call.end_ns)
    if call.exception is not None or not call.argument("empty_cache"):
        return
    _update.clear()
    version = max(call.recorder.version, 0) + 1
    _done.append((call.end_ns, version))
    update.span.set(bytes=update.bytes, items=update.tensors, version=version)
    began_ns = update.start_ns
    columns = {"buckets": update.tensors, "start_ns": began_ns, "stall_ns": call.end_ns - began_ns}
    if str(call.argument("name")).startswith(WHOLE):
        columns |= {"wire_bytes": update.bytes, "transport": Transport.SHARED_MEMORY}
    elif call.argument("ipc_handles") is None:
        columns["wire_bytes"] = update.bytes
    else:
        columns["transport"] = Transport.CUDA_IPC
    weights_moved(call, SyncRole.SINK, version, update.bytes, **columns)
    record_figures(call, {RPC_SECONDS: _spent_ns[RPC_SECONDS] / 1e9})


def worker_loaded(call: Call) -> None:
    """vLLM's worker has taken one tensor: the time in which one was received and loaded at all."""
    _spent_ns[WORKER_SECONDS] += call.end_ns - call.start_ns
    if call.argument("empty_cache"):
        record_figures(call, {WORKER_SECONDS: _spent_ns[WORKER_SECONDS] / 1e9})
