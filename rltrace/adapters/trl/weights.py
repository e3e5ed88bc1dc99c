"""Weights on their way from the trainer to vLLM."""

from __future__ import annotations

import os
from typing import Any

from rltrace.adapters.table.weights import shape_bytes, tensor_bytes, weights_moved
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import SyncRole, Transport


class _Update:
    """The update that is being sent: what has gone out so far, -1 for nothing."""

    bytes = -1
    tensors = 0
    transport: int = Transport.NCCL

    def add(self, size_bytes: int) -> None:
        self.bytes = max(self.bytes, 0) + size_bytes
        self.tensors += 1


_update = _Update()


def begins(_call: Call) -> None:
    vars(_update).clear()


def described(call: Call) -> None:
    """Tensors that are about to be sent, as `(name, type, shape)`."""
    for _, dtype, shape in call.argument("metadata"):
        size = shape_bytes(shape, dtype)
        if size is not None:
            _update.add(size)


def tensor_sent(call: Call) -> None:
    """One tensor is about to be sent; of a client that sends several at once `described` tells."""
    if not hasattr(call.self, "update_named_params"):
        _update.add(tensor_bytes([call.argument("weights")]))


def ends(call: Call) -> None:
    """With a server the first rank sends; an engine of the trainer's own takes from each rank."""
    owner = call.self
    if call.exception is not None:
        return
    mode = getattr(owner, "mode", None) or getattr(owner, "vllm_mode", None)
    if mode == "colocate":
        _update.transport = Transport.IN_PROCESS
        for size in _pushed(owner.model):
            _update.add(size)
    call.span.set(version=call.recorder.version)
    _row(call)


def _pushed(model: Any) -> list[int]:
    """Bytes of the tensors that an engine is given; none are known under FSDP's first wrapper."""
    if type(model).__name__ == "FullyShardedDataParallel":
        return []
    prefix = getattr(model, "prefix", None) if hasattr(model, "peft_config") else None
    return [
        tensor_bytes([parameter])
        for name, parameter in model.named_parameters()
        if not (prefix and (prefix in name or "original_module" in name))
    ]


def _row(call: Call) -> None:
    if _update.bytes >= 0:
        call.span.set(items=_update.tensors)
        known = {"buckets": _update.tensors, "transport": _update.transport}
        known["stall_ns"] = call.end_ns - call.start_ns  # it does nothing else meanwhile
        weights_moved(call, SyncRole.SOURCE, call.recorder.version, _update.bytes, **known)


def streamed(call: Call) -> None:
    """An asynchronous trainer has gathered one tensor, which the first rank sends."""
    size = tensor_bytes([call.result[1]])
    call.span.set(bytes=size, items=1)
    if call.self.accelerator.is_main_process:
        _update.add(size)


def adapter_saved(call: Call) -> None:
    """An adapter has been written to where the server reads it."""
    if call.exception is None and call.argument("accelerator").is_main_process:
        _update.transport = Transport.FILE
        for entry in os.scandir(call.argument("dest_dir")):
            if entry.name.endswith((".safetensors", ".bin")):
                _update.add(entry.stat().st_size)


def published(call: Call) -> None:
    """The server has a new version, by TRL's count, which only the first rank keeps."""
    trainer, recorder = call.self, call.recorder
    if call.exception is not None:
        return
    main = trainer.accelerator.is_main_process
    recorder.version = int(trainer.model_version) if main else max(recorder.version, 0) + 1
    call.span.set(version=recorder.version)
    if not main:
        return
    sender = getattr(trainer, "weight_transfer", None) or getattr(trainer, "rollout_worker", None)
    is_trls = type(sender).__module__.split(".")[0] == "trl"  # and no client of the user's
    if _update.transport == Transport.NCCL and not is_trls:
        _update.transport = -1
    _row(call)
