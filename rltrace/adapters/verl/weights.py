"""Readers where weights are sent and taken."""

from __future__ import annotations

from typing import Any

from rltrace.adapters.table.stated import at
from rltrace.adapters.table.weights import weights_moved
from rltrace.adapters.verl.tables import TRANSPORTS
from rltrace.hooks import weight_moves
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import SyncRole, Transport

_sent_bytes = [0]
_taken_bytes = [0]


def weights_begin(call: Call) -> None:
    _sent_bytes[0] = _taken_bytes[0] = 0
    engine = getattr(call.self, "checkpoint_engine", None)
    if engine is not None and call.span is not None:
        weight_moves.begins(engine, call.span.start_ns)


def weight_streamed(call: Call) -> None:
    """A `(name, tensor)` has been gathered and is about to be sent."""
    size = call.result[1].nbytes
    _sent_bytes[0] += size
    call.span.set(bytes=size, items=1)


def weights_sent(call: Call) -> None:
    """Of a checkpoint engine's ranks only the first sends; the others take part in gathering."""
    if call.exception is not None:
        return
    version, backend = call.argument("global_steps"), _backend(call)
    sends = backend == "naive" or getattr(call.self, "rank", 0) == 0
    metrics = call.result if isinstance(call.result, dict) else {}
    payload = metrics.get("checkpoint_engine/payload_mbytes")
    streamed = _sent_bytes[0] if sends and _sent_bytes[0] else -1
    columns = {
        "stall_ns": call.end_ns - call.start_ns,  # the worker does nothing else meanwhile
        "wire_bytes": streamed if payload is None else round(payload * (1 << 20)),
        "transport": _transport(call, backend),
    }
    if backend != "naive":
        columns |= weight_moves.said(getattr(call.self, "checkpoint_engine", None))
    weights_moved(call, SyncRole.SOURCE, version, streamed, **columns)


def weight_arrived(call: Call) -> None:
    _taken_bytes[0] += call.result[1].nbytes


def weights_taken(call: Call) -> None:
    if call.exception is not None:
        return
    taken = _taken_bytes[0] or -1
    columns = {"wire_bytes": taken, "transport": _transport(call, _backend(call))}
    columns |= weight_moves.said(getattr(call.self, "checkpoint_engine", None))
    weights_moved(call, SyncRole.SINK, call.argument("global_steps"), taken, **columns)


def is_more_than_waiting(call: Call) -> bool:
    """The colocated engine only waits for workers; others abort requests and set groups up, too."""
    return getattr(call.self, "backend", "") != "naive"


def weights_updated(call: Call) -> None:
    version = call.argument("global_steps")
    if call.exception is None and version is not None:
        call.recorder.version = int(version)
        call.span.set(version=int(version))


def _of_rollout(worker: Any, path: str) -> Any:
    return at(worker, f"rollout_config.{path}", f"config.rollout.{path}")


def _backend(call: Call) -> str:
    mode = call.argument("mode", "auto")
    if mode != "auto":
        return str(mode)
    return str(_of_rollout(call.self, "checkpoint_engine.backend") or "naive")


def _transport(call: Call, backend: str) -> int:
    if backend == "naive":
        backend = f"naive/{_of_rollout(call.self, 'name')}"
    if "gloo" in backend:  # a user's own engine; verl brings none
        return Transport.GLOO
    return TRANSPORTS.get(backend, -1)
