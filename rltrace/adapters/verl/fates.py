"""Which trajectories a step trains on, and which it drops.

A batch that trains in step k is trained by the version of step k - 1 (verl's own rule).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import count
from typing import Any

from rltrace.adapters.table.samples import ratios, uses
from rltrace.adapters.verl.rollout import ONE_WORKER, row_id
from rltrace.hooks.hook import Call
from rltrace.hooks.sample_api import identify
from rltrace.trace.vocabulary import Fate


def sampled(call: Call) -> None:
    """V1: tags do not say how many tokens tools answered: only a trajectory's own row does."""
    if call.argument("partition_id") == "val" or call.result is None:
        return
    batch = call.result[0] if isinstance(call.result, tuple) else call.result
    step, tagged = call.argument("global_steps"), zip(batch.keys, batch.tags, strict=True)
    ids = [identify(key) for key, tag in tagged if not tag.get("is_padding", False)]
    uses(call, Fate.TRAINED, ids, step=step, version=step - 1)


def batch_padded(call: Call) -> None:
    """0.8's `main_ppo_sync`: `upsample_batch_to_divisible_size(batch, ...)` gets the batch that
    this step trains on, before padding. The tag is the step that asked for the trajectory, which is
    this one, as the trainer is synchronous."""
    batch = call.argument("batch")
    ids, steps = list(map(identify, batch.keys)), [tag["global_steps"] for tag in batch.tags]
    uses(call, Fate.TRAINED, ids, step=steps, version=[step - 1 for step in steps])


def evicted(call: Call) -> None:
    """V1: groups leave the replay buffer untrained: too old, equal in a metric, or failed."""
    buffer, partition = call.self, call.argument("partition_id")
    stale, filtered, failed, *_ = call.argument("eviction_reasons")
    fates = dict.fromkeys(failed, Fate.FAILED) | dict.fromkeys(filtered, Fate.FILTERED)
    fates |= dict.fromkeys(stale, Fate.STALE)
    if partition == "val" or not fates:
        return
    step = call.argument("global_steps")
    groups = [(key, key.split("_")[0]) for key in buffer.partitions[partition]]
    found = {identify(key): fates[group] for key, group in groups if group in fates}
    uses(call, [*found.values()], [*found], step=step, version=step - 1)


_batches: deque[list[tuple[str, str]]] = deque(maxlen=4)
"""Legacy: (uid, id) of the rows of batches that are generated and not yet trained on, in order. The
one-step-off trainer has two; what is never trained on (validation) must not pile up."""


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
    _batches.append([row for worker, part in enumerate(shares) for row in _numbered(part, worker)])


def _numbered(uids: list[str], worker: int) -> list[tuple[str, str]]:
    places = defaultdict[str, Iterator[int]](count)
    return [(uid, row_id(uid, worker, next(places[uid]))) for uid in uids]


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
        _batches.append([rows[place] for place in order])


def rows_trained(call: Call) -> None:
    """Legacy: all rows of the batch are trained on. Where others were generated (ReMax, resampling,
    a trainer that makes its own batches), which is which is not known."""
    batch = call.argument("batch", call.argument("data"))
    step = call.recorder.step
    version = getattr(call.self, "current_param_version", step - 1)
    uids = _uids(batch)
    rows = next((rows for rows in _batches if [uid for uid, _ in rows] == uids), None)
    if rows is not None:
        _batches.remove(rows)
    elif uids and all(uid.startswith(ONE_WORKER) for uid in uids):
        rows = _numbered(uids, 0)
    held = getattr(batch, "batch", None)
    names = ("response_mask", "old_log_probs", "rollout_log_probs")
    mask, now, then = (None if held is None else held.get(name, None) for name in names)
    moved, ids = ratios(now, then, mask), [-1] * len(batch)
    tokens = ids if mask is None or not (rows is None or moved) else mask.sum(-1).tolist()
    if rows is not None:
        ids = [identify(own_id) for _, own_id in rows]
    uses(call, Fate.TRAINED, ids, tokens, moved, step=step, version=version)


def _uids(batch: Any) -> list[str]:
    return list(batch.non_tensor_batch.get("uid", ()))
