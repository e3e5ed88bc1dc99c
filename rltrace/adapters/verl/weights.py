"""Readers in the processes that send and take weights."""

from __future__ import annotations

from typing import Any

from rltrace.adapters.verl.tables import TRANSPORTS
from rltrace.hooks import moved
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import SyncRole, Transport

_sent_bytes = [0]
_taken_bytes = [0]


def weights_begin(call: Call) -> None:
    """A rank begins to send its weights, or a rollout worker to take them."""
    _sent_bytes[0] = _taken_bytes[0] = 0
    engine = getattr(call.self, "checkpoint_engine", None)
    if engine is not None and call.span is not None:
        moved.begins(engine, call.span.start_ns)


def weight_streamed(call: Call) -> None:
    """One tensor has been gathered and is about to be sent: `(name, tensor)`."""
    size = call.result[1].nbytes
    _sent_bytes[0] += size
    call.span.set(bytes=size, items=1)


def weights_sent(call: Call) -> None:
    """A rank has sent its weights; of a checkpoint engine's only the first rank sends, the others
    take part in gathering."""
    if call.exception is not None:
        return
    version, backend = call.argument("global_steps"), _backend(call)
    sends = backend == "naive" or getattr(call.self, "rank", 0) == 0
    metrics = call.result if isinstance(call.result, dict) else {}
    payload = metrics.get("checkpoint_engine/payload_mbytes")
    streamed = _sent_bytes[0] if sends and _sent_bytes[0] else -1
    columns = {
        "role": SyncRole.SOURCE,
        "stall_ns": call.end_ns - call.start_ns,  # the worker does nothing else meanwhile
        "bytes": streamed,
        "wire_bytes": streamed if payload is None else round(payload * (1 << 20)),
        "transport": _transport(call, backend),
    }
    if backend != "naive":
        columns |= moved.said(getattr(call.self, "checkpoint_engine", None))
    _moved(call, version, columns)
    if call.span is not None and streamed >= 0:
        call.span.set(bytes=streamed)


def weight_arrived(call: Call) -> None:
    _taken_bytes[0] += call.result[1].nbytes


def weights_taken(call: Call) -> None:
    """A rollout worker has taken new weights and put them into its engine."""
    if call.exception is not None:
        return
    columns = {"role": SyncRole.SINK, "transport": _transport(call, _backend(call))}
    if _taken_bytes[0]:
        columns["bytes"] = columns["wire_bytes"] = _taken_bytes[0]
        call.span.set(bytes=_taken_bytes[0])
    columns |= moved.said(getattr(call.self, "checkpoint_engine", None))
    _moved(call, call.argument("global_steps"), columns)


def update_stage(call: Call) -> str:
    """The colocated engine only has the driver wait for its workers; the others have it abort
    requests, set process groups up and resume, which is part of the update."""
    return "wait" if getattr(call.self, "backend", "") == "naive" else "sync"


def weights_updated(call: Call) -> None:
    """The driver has brought a version to all replicas."""
    version = call.argument("global_steps")
    if call.exception is None and version is not None:
        call.recorder.version = int(version)
        call.span.set(version=int(version))


def _moved(call: Call, version: Any, columns: dict[str, int]) -> None:
    if version is not None:
        call.recorder.version = columns["version"] = int(version)
        if call.span is not None:
            call.span.set(version=int(version))
    call.row("syncs", start_ns=call.start_ns, end_ns=call.end_ns, **columns)


def _rollout_config(worker: Any) -> Any:
    config = getattr(worker, "rollout_config", None)
    return config if config is not None else getattr(worker.config, "rollout", None)


def _backend(call: Call) -> str:
    mode = call.argument("mode", "auto")
    if mode != "auto":
        return str(mode)
    engine = getattr(_rollout_config(call.self), "checkpoint_engine", None)
    return str(getattr(engine, "backend", "naive"))


def _transport(call: Call, backend: str) -> int:
    if backend == "naive":
        backend = f"naive/{getattr(_rollout_config(call.self), 'name', '')}"
    if "gloo" in backend:  # a user's own engine; verl brings none
        return Transport.GLOO
    return TRANSPORTS.get(backend, -1)
