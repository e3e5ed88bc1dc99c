"""ROLL: the timers of its pipelines and environment managers, generation and verdicts in the
workers, weights by bucket.

ROLL times with the package `codetiming`, whose timers others may use too: a label that the table
does not have is `other`. In an asynchronous pipeline what the driver times as generation is its
waiting. Versions are ROLL's steps, as it updates the weights once each.
"""

from __future__ import annotations

from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.logged import logged
from rltrace.adapters.table.steps import step_is
from rltrace.adapters.table.timers import Labels, stage_of, start_stop
from rltrace.adapters.table.weights import Sending
from rltrace.hooks.hook import Call, Hook

LABELS = {
    "step_total": "step",
    "pipeline_step_total": "step",
    "step_generate": "rollout",
    "rollout": "rollout",
    "generate": "",  # an environment's turn: its request is seen by call
    "step": "env",
    "reset": "env",
    "cal_ref_log_probs": "reference",
    "cal_old_log_probs_values": "logprob",
    "step_train": "train",
    "train_timer": "train",
    "actor_train": "train",
    "step_model_update": "sync",
    "model_update": "sync",
    "step_stop_server": "wait",
    "shrink_sampler": "switch",
    "expand_sampler": "switch",
    "val_step": "eval",
    "val": "eval",
}
"""Name of ROLL's timers -> stage; metrics are `time/<label>`, now and then under another name."""

_WORKER = "roll.pipeline.base_worker"
_TRACKING = "roll.utils.tracking"
_MEGATRON = "roll.third_party.megatron.model_update:MegatronWeightUpdater"
_FSDP = "roll.third_party.fsdp2.model_update:FSDP2WeightUpdater"
_AHEAD = frozenset({"step_generate", "rollout"})
"""Labels that mean waiting where samples are generated ahead."""


class _Pipeline:
    """What the driver's pipeline has said of itself."""

    is_async = False


def stage_in_pipeline(labels: Labels, label: str) -> str:
    """The stage of a timer, as the pipeline runs."""
    return "wait" if _Pipeline.is_async and label in _AHEAD else stage_of(labels, label)


def update_begins(call: Call) -> None:
    """The first thing that a pipeline does in a step."""
    config = call.self.pipeline_config
    _Pipeline.is_async = getattr(config, "async_generation_ratio", 0) > 0
    placement = {"placement": "async"} if _Pipeline.is_async else {}
    call.recorder.describe(role="controller", **placement)
    number = int(call.argument("global_step"))
    step_is(call.recorder, number)
    call.recorder.version = number


def worker_begins(call: Call) -> None:
    """A worker is given a batch, with the step that it is for."""
    data = call.argument("data")
    step = getattr(data, "meta_info", {}).get("global_step")
    if step is not None:
        call.recorder.step = int(step)
    if call.span is not None and getattr(data, "batch", None) is not None:
        call.span.set(step=call.recorder.step, items=len(data))


_sending = Sending(lambda call: None)


class Roll(TableAdapter):
    """The adapter for ROLL."""

    framework = "roll.pipeline"  # others are called roll too
    labels = LABELS
    calls = (
        Hook("roll.pipeline.base_pipeline:BasePipeline.model_update", before=update_begins),
        Hook(
            f"{_WORKER}:InferWorker.generate",
            "rollout",
            alternates=(f"{_WORKER}:ActorWorker.generate",),
        ),
        Hook(f"{_WORKER}:InferWorker.generate_request", "rollout"),
        Hook(f"{_WORKER}:ActorWorker.train_step", "train", before=worker_begins),
        Hook(f"{_WORKER}:RewardWorker.compute_rewards", "reward", before=worker_begins),
        Hook(
            "roll.distributed.scheduler.reward_scheduler:RewardScheduler.compute_rewards", "reward"
        ),
        Hook(
            "roll.pipeline.rlvr.rewards.math_rule_reward_worker:"
            "MathRuleRewardWorker.compute_rewards",
            "reward",
        ),
        _sending.update_row(f"{_MEGATRON}.model_update"),
        _sending.bucket_row(f"{_MEGATRON}._broadcast_to_infer_workers", "hf_named_weights"),
        _sending.update_row(f"{_FSDP}.model_update"),
        _sending.bucket_row(f"{_FSDP}._broadcast_to_infer_workers", "named_weights"),
    )
    timers = start_stop(
        "codetiming._timer:Timer.start",
        "codetiming._timer:Timer.stop",
        LABELS,
        lambda call: str(call.self.name),
        resolve=stage_in_pipeline,
    )
    sinks = tuple(
        Hook(f"{_TRACKING}:{kind}Tracker.log", before=logged("values"), optional=True)
        for kind in ("TensorBoard", "Wandb", "Swanlab", "Trackio", "Stdout")
    )
