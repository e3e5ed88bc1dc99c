"""ROLL: timers of pipelines and environments, generation and verdicts, weights by bucket.

ROLL times with `codetiming`, whose timers others may use too. In an asynchronous pipeline what the
driver times as generation is its waiting. Versions are steps, as each updates the weights once.
"""

from __future__ import annotations

from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.logged import logged
from rltrace.adapters.table.steps import step_is
from rltrace.adapters.table.timers import Labels, labelled, stage_of, start_stop
from rltrace.adapters.table.weights import Sending
from rltrace.hooks.hook import Call, Hook

LABELS = labelled(
    step="step_total pipeline_step_total",
    rollout="step_generate rollout",
    no_span="generate",  # an environment's turn: its request is seen by call
    env="step reset",
    reference="cal_ref_log_probs",
    logprob="cal_old_log_probs_values",
    train="step_train train_timer actor_train",
    sync="step_model_update model_update",
    wait="step_stop_server",
    switch="shrink_sampler expand_sampler",
    eval="val_step val",
)
"""ROLL's timers; metrics are `time/<label>`, now and then under another name."""

_WORKER = "roll.pipeline.base_worker"
_SCHEDULER = "roll.distributed.scheduler.reward_scheduler:RewardScheduler"
_MATH = "roll.pipeline.rlvr.rewards.math_rule_reward_worker:MathRuleRewardWorker"
_TRACKING = "roll.utils.tracking"
_MEGATRON = "roll.third_party.megatron.model_update:MegatronWeightUpdater"
_FSDP = "roll.third_party.fsdp2.model_update:FSDP2WeightUpdater"
_AHEAD = ("step_generate", "rollout")  # waiting, where samples are generated ahead


class _Pipeline:
    is_async = False


def stage_in_pipeline(labels: Labels, label: str) -> str:
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
    data = call.argument("data")
    step = getattr(data, "meta_info", {}).get("global_step")
    if step is not None:
        call.recorder.step = int(step)
    if call.span is not None and getattr(data, "batch", None) is not None:
        call.span.set(step=call.recorder.step, items=len(data))


_sending = Sending(lambda call: None)


class Roll(TableAdapter):
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
        Hook(f"{_SCHEDULER}.compute_rewards", "reward"),
        Hook(f"{_MATH}.compute_rewards", "reward"),
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
