"""Readers in the trainer's driver and the training workers.

The trainer and the replay buffer of verl 0.8's `main_ppo_sync` are defined in the program itself
and come to other processes by value, which no import hook sees. What they call of verl's modules
tells the same: here (`batch_given_out`) and in `fates.batch_padded`.
"""

from __future__ import annotations

from typing import Any

from rltrace.adapters.table.stated import at
from rltrace.adapters.verl.tables import LABELS, SEEN_BY_CALL, SEEN_ELSEWHERE
from rltrace.hooks.hook import Call

_step: list[Any] = []  # the span of the one in progress


def timer_stage(call: Call) -> str | None:
    """The stage that a timer is in the process that runs it (`SEEN_ELSEWHERE` says why `wait`)."""
    label = call.argument("name")
    if label in SEEN_BY_CALL:
        return None
    stage = LABELS.get(label, "other")
    return "wait" if stage in SEEN_ELSEWHERE and label != "reshard" else stage


def timer_named(call: Call) -> None:
    name = call.argument("name")
    if call.span is not None:
        call.span.set(name=call.recorder.name(name))
    if name == "step":
        _step[:] = [call.span]


def batch_given_out(call: Call) -> None:
    """`assign_non_tensor_data(prompts, "global_steps", number)`, within the step: its number."""
    if call.argument("key") != "global_steps":
        return
    call.recorder.step = number = int(call.argument("val"))
    for span in _step:
        span.set(step=number)


def resumed(call: Call) -> None:
    """The checkpoint, if any, is loaded: steps count on."""
    if call.exception is None:
        call.recorder.step = call.self.global_steps


def placed(call: Call) -> None:
    rank = getattr(call.self, "rank", None)
    if call.exception is None and rank is not None:
        call.recorder.describe(rank=int(rank))


def model_built(call: Call) -> None:
    """The whole model on one rank: its parameters, tied ones once. Megatron has cut it already, so
    its number stays unknown; critics are another model."""
    model = call.argument("model")
    parameters = list(model.parameters())
    sharded = any(hasattr(p, "tensor_model_parallel") for p in parameters)
    if not sharded and not hasattr(model, "v_head") and not hasattr(model, "score"):
        call.recorder.describe(parameters=sum(p.numel() for p in parameters))


def is_critic(call: Call) -> bool:
    """Whether a `TrainingWorker` is a critic's: the policy's own calls are seen one floor up."""
    return bool(at(call.self, "config.model_type") == "value_model")


def batch_given(call: Call) -> None:
    """A worker's share of a batch: V1 hands out metadata with tags (0.9 as what the data store
    keeps beside its rows), which say how long each trajectory is; the legacy trainers the rows."""
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
