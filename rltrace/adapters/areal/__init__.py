"""AReaL: timer, requests with their tokens' versions, weights by bucket.

What the trainer times as `rollout` is its waiting for samples; generation is seen where requests
are made. A step lasts from that wait to the commit of its figures, which says its number.
"""

from __future__ import annotations

from rltrace.adapters.areal import samples
from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.logged import logged
from rltrace.adapters.table.rows import formerly, in_versions
from rltrace.adapters.table.steps import step_begins, step_ends, step_is
from rltrace.adapters.table.timers import labelled, timed_block
from rltrace.adapters.table.weights import Sending, version_is
from rltrace.hooks.hook import Call, Hook

LABELS = labelled(
    wait="rollout",
    reference="ref_logp teacher_logp",
    logprob="recompute_logp",
    value="critic_values",
    other="compute_advantage clear_batches",
    train="train_step critic_train_step",
    sync="update_weights rollout_pause rollout_pause_generation rollout_continue_generation "
    "rollout_resume",
    switch="rollout_onload rollout_offload actor_onload actor_offload critic_onload critic_offload "
    "ref_onload ref_offload",
    data="load_bcast bcast to_device",
    checkpoint="save checkpoint_for_recover",
    eval="eval",
)
"""AReaL's `record_timing` keys; the metric is `timeperf/<key>`."""

_ENGINE = "areal.infra.remote_inf_engine:RemoteInfEngine"
_EXECUTOR = "areal.infra.workflow_executor:BatchTaskDispatcher"
_STALENESS = "areal.infra.staleness_manager:StalenessManager"
_BEFORE = {"areal.infra": "areal.core", "areal.trainer": "areal.engine"}  # until 0.5
_FSDP = "areal.engine.fsdp_engine:FSDPEngine"
_MEGATRON = "areal.engine.megatron_engine:MegatronEngine"
_TRACKER = "areal.utils.stats_tracker"


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


class AReaL(TableAdapter):
    framework = "areal"
    versions = ">=0.5,<2.1"
    labels = LABELS
    calls = (
        *formerly(
            _BEFORE,
            Hook(f"{_ENGINE}.agenerate", "rollout", before=samples.asked, after=samples.answered),
            Hook(f"{_ENGINE}.set_version", before=version_is("version")),
            Hook(f"{_EXECUTOR}.wait_results", after=samples.taken),
            Hook(f"{_EXECUTOR}.wait_for_task", after=samples.passed_on, versions=">=0.5.3"),
            Hook(f"{_STALENESS}.on_rollout_rejected", before=samples.rejected),
            Hook("areal.trainer.ppo.actor:PPOActor.ppo_update", "train"),
        ),
        Hook("areal.api.reward_api:AsyncRewardWrapper.__call__", "reward", after=samples.judged),
        _sending.update_row(f"{_FSDP}.update_weights"),
        _sending.update_row(f"{_MEGATRON}.update_weights"),
        _sending.bucket_row(f"{_MEGATRON}.{_BUCKET}", "converted_named_tensors"),
        # Since 1.0.4 the bucket goes out in a function of its own, which the other one calls.
        *in_versions(">=1.0.4", _sending.bucket_row(f"{_FSDP}.{_BUCKET}_async", "named_tensors")),
        *in_versions("<1.0.4", _sending.bucket_row(f"{_FSDP}.{_BUCKET}", "named_tensors")),
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
