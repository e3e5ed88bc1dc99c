"""AReaL: the trainer's timer, requests with the versions of their tokens, weights by bucket.

    samples.py      requests, their verdicts, and which of them the trainer takes

What the trainer times as `rollout` is its waiting for samples; generation is seen where requests
are made. A step lasts from that wait to the commit of its figures, which says its number.
"""

from __future__ import annotations

from rltrace.adapters.areal import samples
from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.logged import logged
from rltrace.adapters.table.steps import step_begins, step_ends, step_is
from rltrace.adapters.table.timers import timed_block
from rltrace.adapters.table.weights import Sending
from rltrace.hooks.hook import Call, Hook

LABELS = {
    "rollout": "wait",
    "ref_logp": "reference",
    "teacher_logp": "reference",
    "recompute_logp": "logprob",
    "critic_values": "value",
    "compute_advantage": "other",
    "train_step": "train",
    "critic_train_step": "train",
    "update_weights": "sync",
    "rollout_pause": "sync",
    "rollout_pause_generation": "sync",
    "rollout_continue_generation": "sync",
    "rollout_resume": "sync",
    "rollout_onload": "switch",
    "rollout_offload": "switch",
    "actor_onload": "switch",
    "actor_offload": "switch",
    "critic_onload": "switch",
    "critic_offload": "switch",
    "ref_onload": "switch",
    "ref_offload": "switch",
    "load_bcast": "data",
    "bcast": "data",
    "to_device": "data",
    "save": "checkpoint",
    "checkpoint_for_recover": "checkpoint",
    "eval": "eval",
    "clear_batches": "other",
}
"""AReaL's `record_timing` key -> stage; the metric is `timeperf/<key>`."""

_ENGINE = "areal.infra.remote_inf_engine:RemoteInfEngine"
_ENGINE_BEFORE = "areal.core.remote_inf_engine:RemoteInfEngine"  # until 0.5
_ACTOR = "areal.trainer.ppo.actor:PPOActor"
_ACTOR_BEFORE = "areal.engine.ppo.actor:PPOActor"  # until 0.5
_FSDP = "areal.engine.fsdp_engine:FSDPEngine"
_MEGATRON = "areal.engine.megatron_engine:MegatronEngine"
_TRACKER = "areal.utils.stats_tracker"
_EXECUTOR = "areal.infra.workflow_executor:BatchTaskDispatcher"
_EXECUTOR_BEFORE = "areal.core.workflow_executor:BatchTaskDispatcher"
_STALENESS = "areal.infra.staleness_manager:StalenessManager"
_STALENESS_BEFORE = "areal.core.staleness_manager:StalenessManager"


def version_set(call: Call) -> None:
    """What this process generates from here on is of this version."""
    call.recorder.version = int(call.argument("version"))


def step_seen(call: Call) -> None:
    """The wait for samples is the first thing that a step does."""
    if call.argument("key") == "rollout" and call.recorder.open_step is None:
        step_begins(call.recorder.step + 1)


def committed(call: Call) -> None:
    """A step's figures are written: it is over, and this is its number."""
    step_is(call.recorder, int(call.argument("global_step")))
    samples.uses_are_of(call.recorder)
    step_ends(call.recorder)


_sending = Sending(lambda call: getattr(call.argument("meta"), "version", None))

_BUCKET = "_update_bucket_weights_from_distributed"
_BUCKETS = (
    # Since 1.0.4 the bucket goes out in a function of its own, which the other one calls.
    (_FSDP, f"{_BUCKET}_async", "named_tensors", ">=1.0.4"),
    (_FSDP, _BUCKET, "named_tensors", "<1.0.4"),
    (_MEGATRON, _BUCKET, "converted_named_tensors", ""),
)
"""What sends a bucket, the argument that holds its tensors, and the versions that have it so."""


class AReaL(TableAdapter):
    """The adapter for AReaL."""

    framework = "areal"
    versions = ">=0.5,<2.1"
    labels = LABELS
    calls = (
        Hook(
            f"{_ENGINE}.agenerate",
            "rollout",
            before=samples.request_begins,
            after=samples.request_ends,
            alternates=(f"{_ENGINE_BEFORE}.agenerate",),
        ),
        Hook(
            f"{_ENGINE}.set_version",
            before=version_set,
            alternates=(f"{_ENGINE_BEFORE}.set_version",),
        ),
        Hook("areal.api.reward_api:AsyncRewardWrapper.__call__", "reward", after=samples.judged),
        Hook(
            f"{_EXECUTOR}.wait_results",
            after=samples.taken,
            alternates=(f"{_EXECUTOR_BEFORE}.wait_results",),
        ),
        Hook(
            f"{_EXECUTOR}.wait_for_task",
            after=samples.passed_on,
            alternates=(f"{_EXECUTOR_BEFORE}.wait_for_task",),
            versions=">=0.5.3",
        ),
        Hook(
            f"{_STALENESS}.on_rollout_rejected",
            before=samples.rejected,
            alternates=(f"{_STALENESS_BEFORE}.on_rollout_rejected",),
        ),
        Hook(f"{_ACTOR}.ppo_update", "train", alternates=(f"{_ACTOR_BEFORE}.ppo_update",)),
        *(
            Hook(f"{engine}.update_weights", "sync", before=_sending.begins, after=_sending.ends)
            for engine in (_FSDP, _MEGATRON)
        ),
        *(
            Hook(
                f"{engine}.{method}",
                "sync",
                phase="transfer",
                before=_sending.bucket(tensors),
                versions=versions,
            )
            for engine, method, tensors, versions in _BUCKETS
        ),
    )
    timers = (
        timed_block(
            f"{_TRACKER}:DistributedStatsTracker.record_timing", LABELS, "key", first=step_seen
        ),
        # The name that the trainers use is a method bound before anybody can patch its class.
        timed_block(f"{_TRACKER}:record_timing", LABELS, "key", first=step_seen),
    )
    sinks = (
        Hook("areal.utils.stats_logger:StatsLogger.commit", before=logged("data"), after=committed),
    )
