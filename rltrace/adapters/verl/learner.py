"""Readers in the trainer's driver and in the processes that train, send and take weights."""

from __future__ import annotations

import math
import time
from typing import Any

from rltrace.adapters.verl.rollout import ONE_WORKER, row_id
from rltrace.adapters.verl.tables import LABELS, SEEN_BY_CALL, SEEN_ELSEWHERE, TRANSPORTS
from rltrace.hooks.hook import Call
from rltrace.hooks.identity import identify
from rltrace.trace.vocabulary import Fate, SyncRole, Transport


def timer_stage(call: Call) -> str | None:
    """The stage that a timer is in the process that runs it (`SEEN_ELSEWHERE` says why `wait`)."""
    label = call.argument("name")
    if label in SEEN_BY_CALL:
        return None
    stage = LABELS.get(label, "other")
    return "wait" if stage in SEEN_ELSEWHERE and label != "reshard" else stage


def timer_named(call: Call) -> None:
    """The span of a timer is named as verl names it."""
    if call.span is not None:
        call.span.set(name=call.recorder.name(call.argument("name")))


def logged(call: Call) -> None:
    """The figures of a step that verl logs, under its own names: numbers of the host only, since
    reading one off a device would have the job wait for it."""
    recorder, now = call.recorder, time.monotonic_ns()
    for name, value in (call.argument("data") or {}).items():
        if _is_number(value) and math.isfinite(value):
            recorder.append("samples", time_ns=now, counter=recorder.name(name), value=float(value))


def _is_number(value: Any) -> bool:
    if type(value).__module__ == "numpy":
        return value.shape == () and value.dtype.kind in "iuf"
    return isinstance(value, float | int) and not isinstance(value, bool)


def resumed(call: Call) -> None:
    """The checkpoint, if any, is loaded: steps count on from here."""
    if call.exception is None:
        call.recorder.step = call.self.global_steps


# Fates. A batch that trains in step k is trained by the version of step k - 1 (verl's own rule).


def sampled(call: Call) -> None:
    """V1: the replay buffer has handed a batch out; tags say what each trajectory is."""
    if call.argument("partition_id") == "val" or call.result is None:
        return
    batch = call.result[0] if isinstance(call.result, tuple) else call.result
    step = call.argument("global_steps")
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        if not tag.get("is_padding", False):
            used(call, key, step, step - 1, Fate.TRAINED, tag.get("response_len", -1))


def evicted(call: Call) -> None:
    """V1: groups leave the replay buffer untrained: too old, without a signal, or failed."""
    buffer, partition = call.self, call.argument("partition_id")
    stale, without_signal, failed, *_ = call.argument("eviction_reasons")
    reasons = {Fate.STALE: stale, Fate.ZERO_ADVANTAGE: without_signal, Fate.FAILED: failed}
    if partition == "val" or not any(reasons.values()):
        return
    step = call.argument("global_steps")
    for key, tag in buffer.partitions[partition].items():
        group = key.split("_")[0]
        fate = next((fate for fate, groups in reasons.items() if group in groups), None)
        if fate is not None:
            used(call, key, step, step - 1, fate, tag.get("response_len", -1))


_batches: list[list[tuple[str, str]]] = []
"""Legacy: (uid, id) of the rows of batches that are generated and not yet trained on, in order."""

_MOST_BATCHES = 4  # one-step-off has two; what is never trained on (validation) must not pile up


def rows_arrive(call: Call) -> None:
    """Legacy: a batch has been generated, in the order of its prompts (`rollout._id`)."""
    prompts, workers = call.argument("prompts"), len(call.self.agent_loop_workers)
    uids = prompts.non_tensor_batch.get("uid")
    if call.result is None or prompts.meta_info.get("validate") or uids is None:
        return
    if len(uids) % workers:
        return
    share = len(uids) // workers
    shares = [uids[worker * share : (worker + 1) * share] for worker in range(workers)]
    _expect([row for worker, part in enumerate(shares) for row in _numbered(part, worker)])


def _numbered(uids: list[str], worker: int) -> list[tuple[str, str]]:
    seen: dict[str, int] = {}
    rows = []
    for uid in uids:
        seen[uid] = seen.get(uid, -1) + 1
        rows.append((uid, row_id(uid, worker, seen[uid])))
    return rows


def _expect(rows: list[tuple[str, str]]) -> None:
    del _batches[: -_MOST_BATCHES + 1]
    _batches.append(rows)


def rows_reordered(call: Call) -> None:
    """Legacy: the batch is balanced over the ranks by putting its rows into another order."""
    order = call.argument("indices").tolist()
    if call.exception is not None:
        return
    uids = _uids(call.self)
    for rows in _batches:
        if len(rows) == len(order) == len(uids):
            moved = [rows[place] for place in order]
            if [uid for uid, _ in moved] == uids:
                rows[:] = moved
                return
    if uids and len(uids) == len(order) and all(uid.startswith(ONE_WORKER) for uid in uids):
        before = dict(zip(order, uids, strict=True))
        rows = _numbered([before[place] for place in range(len(order))], 0)
        _expect([rows[place] for place in order])


def rows_trained(call: Call) -> None:
    """Legacy: all rows of the batch are trained on. Where they are not those that were generated
    (ReMax, resampling, a trainer that makes its own batches), which is which is not known."""
    batch = call.argument("batch", call.argument("data"))
    step = call.recorder.step
    version = getattr(call.self, "current_param_version", step - 1)
    uids = _uids(batch)
    rows = next((rows for rows in _batches if [uid for uid, _ in rows] == uids), None)
    if rows is not None:
        _batches.remove(rows)
    elif uids and all(uid.startswith(ONE_WORKER) for uid in uids):
        rows = _numbered(uids, 0)
    for place in range(len(batch)):
        own_id = None if rows is None else rows[place][1]
        used(call, own_id, step, version, Fate.TRAINED, -1)


def _uids(batch: Any) -> list[str]:
    return list(batch.non_tensor_batch.get("uid", ()))


def used(call: Call, own_id: str | None, step: int, version: int, fate: Fate, tokens: int) -> None:
    call.recorder.append(
        "uses",
        time_ns=call.end_ns if call.end_ns > 0 else call.start_ns,
        trajectory=-1 if own_id is None else identify(own_id),
        step=step,
        version=version,
        fate=fate,
        tokens=tokens,
    )


# The workers that train.


def placed(call: Call) -> None:
    """A worker knows its rank."""
    rank = getattr(call.self, "rank", None)
    if call.exception is None and rank is not None:
        call.recorder.describe(rank=int(rank))


def model_built(call: Call) -> None:
    """The whole model on one rank, before it is cut: its parameters, tied ones once. Megatron has
    cut it already, so its number stays unknown; critics are another model."""
    model = call.argument("model")
    parameters = list(model.parameters())
    sharded = any(hasattr(p, "tensor_model_parallel") for p in parameters)
    if not sharded and not hasattr(model, "v_head") and not hasattr(model, "score"):
        call.recorder.describe(parameters=sum(p.numel() for p in parameters))


def critic_forward(call: Call) -> str | None:
    """`TrainingWorker.infer_batch`: the policy's own calls are seen one floor up."""
    return "value" if _is_critic(call.self) else None


def critic_train(call: Call) -> str | None:
    """`TrainingWorker.train_mini_batch`, likewise."""
    return "train" if _is_critic(call.self) else None


def _is_critic(worker: Any) -> bool:
    return getattr(getattr(worker, "config", None), "model_type", "") == "value_model"


def batch_given(call: Call) -> None:
    """A worker's share of a batch: V1 hands out metadata with tags, which say how long each
    trajectory is (0.9 as what the data store keeps beside its rows), the legacy trainers the rows,
    each as long as it is."""
    batch = call.argument("data")
    tags = getattr(batch, "tags", None) or getattr(batch, "custom_meta", None)
    if call.span is None or batch is None:
        return
    if tags:
        real = [tag for tag in tags if not tag.get("is_padding", False)]
        call.span.set(items=len(real))
        if all("seq_len" in tag for tag in real):
            call.span.set(tokens=sum(tag["seq_len"] for tag in real))
        return
    call.span.set(items=len(batch))
    ids: Any = batch.get("input_ids") if hasattr(batch, "get") else None
    if getattr(ids, "is_nested", False):
        call.span.set(tokens=ids.values().shape[0])


# Weights.

_sent_bytes = [0]
_taken_bytes = [0]


def weights_begin(call: Call) -> None:
    """A rank begins to send its weights, or a rollout worker to take them."""
    del call
    _sent_bytes[0] = _taken_bytes[0] = 0


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
    _moved(call, version, columns)
    if call.span is not None and streamed >= 0:
        call.span.set(bytes=streamed)


def weight_arrived(call: Call) -> None:
    """One tensor has arrived, whole: `(name, tensor)`."""
    _taken_bytes[0] += call.result[1].nbytes


def weights_taken(call: Call) -> None:
    """A rollout worker has taken new weights and put them into its engine."""
    if call.exception is not None:
        return
    columns = {"role": SyncRole.SINK, "transport": _transport(call, _backend(call))}
    if _taken_bytes[0]:
        columns["bytes"] = columns["wire_bytes"] = _taken_bytes[0]
        call.span.set(bytes=_taken_bytes[0])
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
