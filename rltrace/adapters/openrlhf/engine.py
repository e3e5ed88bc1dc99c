"""Readers where new weights arrive: in a rollout actor, and in vLLM's worker below it.

OpenRLHF sends a model tensor by tensor, each with a remote call of its own, and says with the last
one that it is (`empty_cache`). A model may have ten thousand tensors: an update is one span and one
row with their number and bytes, and what the calls cost is two counters.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from rltrace.adapters.table.logged import record_figures
from rltrace.adapters.table.stated import at
from rltrace.adapters.table.weights import parameter_count, tensor_bytes, weights_moved
from rltrace.hooks import moved
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import SyncRole, Transport

WHOLE = "rltrace.sync "
"""How the name of what is no tensor, but a whole version, begins (`rltrace.plugins.openrlhf`)."""

_STAGE = f"{WHOLE}stage "

RPC_SECONDS = "weights/rpc_seconds"
"""Counter of a rollout actor, cumulative, read with each update: the time in which a call that
brings it one tensor was at work. OpenRLHF makes such a call for each tensor and waits for it, so
what an update takes beyond `WORKER_SECONDS` is the price of the calls themselves."""

WORKER_SECONDS = "weights/worker_seconds"
"""Counter of vLLM's worker, likewise: the time in which it received a tensor and loaded it. On a
GPU that is the host's part, as both are only begun there."""

_LANE = 1  # each call is a task of its own; the span of an update belongs to none of them


class _Update:
    """The update that is on its way into this process."""

    __slots__ = ("bytes", "first", "span", "start_ns", "tensors")

    def __init__(self, name: str) -> None:
        self.first = name
        self.span: Any = None
        self.start_ns = -1
        self.tensors = self.bytes = 0


_update: list[_Update] = []
_spent_ns = {RPC_SECONDS: 0, WORKER_SECONDS: 0}
_done: deque[tuple[int, int]] = deque(maxlen=1024)  # (when, version) of the latest updates


def started(call: Call) -> None:
    """The engine is there, with the weights that it was started with: version 0."""
    if call.exception is None:
        call.recorder.version = 0


def version_at(time_ns: int, otherwise: int) -> int:
    """The version of the engine's weights at a time (monotonic ns) in this process."""
    for when, version in reversed(_done):
        if when <= time_ns:
            return version
    return _done[0][1] - 1 if _done else otherwise


def tensor_stage(call: Call) -> str | None:
    """The first tensor of an update begins the span of it. An update that was broken off is begun
    anew with the same tensor, or a version that is staged."""
    name = str(call.argument("name"))
    if not _update or _update[0].first == name or name.startswith(_STAGE):
        _update[:] = [_Update(name)]
        return "sync"
    return None


def tensor_comes(call: Call) -> None:
    """One tensor is announced: `update_weight(name, dtype, shape, ...)`."""
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
    columns = {"buckets": update.tensors, "start_ns": update.start_ns}
    columns["stall_ns"] = call.end_ns - update.start_ns
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


# --- Readers in the processes of the models: policy, critic, reference, reward model.


def placed(call: Call) -> None:
    """A model's actor knows its rank."""
    call.recorder.describe(rank=int(call.argument("rank")))


def is_forward(call: Call) -> bool:
    """Through `execute_batch(method_name, ...)` a model's actor is also given what it will train
    on."""
    return bool(call.argument("method_name") == "forward")


def batch_given(call: Call) -> None:
    """An actor's share of a batch: micro-batches of sequences with their masks, on the CPU."""
    if call.span is None:
        return
    share = slice(call.argument("start_idx"), call.argument("end_idx"))
    masks = call.argument("all_data")["attention_mask"][share]
    tokens = sum(int(mask.sum()) for mask in masks)
    call.span.set(items=sum(len(mask) for mask in masks), tokens=tokens)


def policy_built(call: Call) -> None:
    """The policy is there, with the weights that it begins with: version 0."""
    if call.exception is None:
        call.recorder.version = 0
        if call.self.strategy.is_rank_0():
            call.recorder.describe(parameters=parameter_count(call.self.actor.model.module))


def training(call: Call) -> None:
    """A trainer goes over its replay buffer; a last micro-batch that is not full is left out, and
    which samples that are is not known."""
    buffer = call.self.replay_buffer
    items = buffer.items
    left_out = 0 if buffer.dynamic_batch else len(items) % buffer.sample_batch_size
    call.span.set(items=len(items) - left_out)
    masks = [item.attention_mask for item in items]
    if not left_out and all(mask.device.type == "cpu" for mask in masks):
        call.span.set(tokens=sum(int(mask.sum()) for mask in masks))


def sending(call: Call) -> None:
    if call.span is not None:
        moved.begins(call.self, call.span.start_ns)


def sent(call: Call) -> None:
    """A rank has taken part in sending the weights, tensor by tensor; the first one sends."""
    if call.exception is not None:
        return
    version = call.recorder.version = max(call.recorder.version, 0) + 1
    call.span.set(version=version)
    if not call.self.strategy.is_rank_0():
        return
    tensors, size = _model(call.self)
    call.span.set(items=tensors)
    known = {"buckets": tensors, "transport": _transport(call.self)}
    known["stall_ns"] = call.end_ns - call.start_ns  # it does nothing else meanwhile
    weights_moved(call, SyncRole.SOURCE, version, size, **(known | moved.said(call.self)))


_TRANSPORTS = {"nccl": Transport.NCCL, "gloo": Transport.GLOO}

_models: dict[int, tuple[int, int]] = {}


def _model(trainer: Any) -> tuple[int, int]:
    """Tensors and bytes of an update, looked at once: a large model has thousands. Of a model that
    sees, only what is trained is sent."""
    known = _models.get(id(trainer))
    if known is None:
        sees = getattr(trainer.actor, "is_vlm", False)
        parameters = trainer.actor.model.module.parameters()
        sent = [parameter for parameter in parameters if parameter.requires_grad or not sees]
        known = _models[id(trainer)] = (len(sent), tensor_bytes(sent))
    return known


def _transport(trainer: Any) -> int:
    """What carried the weights. OpenRLHF's `sync_backend` only counts where Ray's collectives are
    used; else the group is vLLM's of NCCL whatever that says, unless somebody has put another one
    in its place."""
    if trainer.use_cuda_ipc:
        return Transport.CUDA_IPC
    group = getattr(trainer, "_model_update_group", None)
    kind = type(group).__name__
    if isinstance(group, str):  # the name of a group of Ray's
        kind = str(at(trainer.strategy.args, "vllm.sync_backend", "vllm_sync_backend"))
    named = (code for word, code in _TRANSPORTS.items() if word in kind.lower())
    return next(named, -1)
