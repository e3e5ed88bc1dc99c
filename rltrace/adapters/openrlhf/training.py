"""Readers in the processes of the models: batches, weights that are sent."""

from __future__ import annotations

from typing import Any

from rltrace.adapters.table.stated import at
from rltrace.adapters.table.weights import parameter_count, tensor_bytes, weights_moved
from rltrace.hooks import weight_moves
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import SyncRole, Transport


def placed(call: Call) -> None:
    call.recorder.describe(rank=int(call.argument("rank")))


def is_forward(call: Call) -> bool:
    """`execute_batch(method_name, ...)` also gives an actor what it will train on."""
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
    """The weights that the policy begins with are version 0."""
    if call.exception is None:
        call.recorder.version = 0
        if call.self.strategy.is_rank_0():
            call.recorder.describe(parameters=parameter_count(call.self.actor.model.module))


def training(call: Call) -> None:
    """A last micro-batch that is not full is left out, and which samples that are is not known."""
    buffer = call.self.replay_buffer
    items = buffer.items
    left_out = 0 if buffer.dynamic_batch else len(items) % buffer.sample_batch_size
    call.span.set(items=len(items) - left_out)
    masks = [item.attention_mask for item in items]
    if not left_out and all(mask.device.type == "cpu" for mask in masks):
        call.span.set(tokens=sum(int(mask.sum()) for mask in masks))


def sending(call: Call) -> None:
    if call.span is not None:
        weight_moves.begins(call.self, call.span.start_ns)


def sent(call: Call) -> None:
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
    weights_moved(call, SyncRole.SOURCE, version, size, **(known | weight_moves.said(call.self)))


_TRANSPORTS = {"nccl": Transport.NCCL, "gloo": Transport.GLOO}

_models: dict[int, tuple[int, int]] = {}


def _model(trainer: Any) -> tuple[int, int]:
    """Tensors and bytes of an update, counted once: of a model that sees, what is trained."""
    if id(trainer) not in _models:
        sees = getattr(trainer.actor, "is_vlm", False)
        parameters = trainer.actor.model.module.parameters()
        sent = [parameter for parameter in parameters if parameter.requires_grad or not sees]
        _models[id(trainer)] = (len(sent), tensor_bytes(sent))
    return _models[id(trainer)]


def _transport(trainer: Any) -> int:
    """What carried the weights. `sync_backend` only counts with Ray's collectives; else the group
    is vLLM's of NCCL, unless somebody has put another one in its place."""
    if trainer.use_cuda_ipc:
        return Transport.CUDA_IPC
    group = getattr(trainer, "_model_update_group", None)
    kind = type(group).__name__
    if isinstance(group, str):  # the name of a group of Ray's
        kind = str(at(trainer.strategy.args, "vllm.sync_backend", "vllm_sync_backend"))
    named = (code for word, code in _TRANSPORTS.items() if word in kind.lower())
    return next(named, -1)
