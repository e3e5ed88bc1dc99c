"""Agent Lightning: rollouts, its store (0.3), and the trainer's timer.

Training is verl's, whose own adapter sees it: 0.3 has a timer of its own in that loop, 1.0 uses
verl's. In 1.0 a rollout names no version, so that stays unknown.
"""

from __future__ import annotations

import time

from rltrace.adapters.agentlightning import store
from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.rows import in_versions, methods
from rltrace.adapters.table.timers import timed_block
from rltrace.adapters.verl.tables import LABELS as VERL_LABELS
from rltrace.hooks.hook import Call, Hook
from rltrace.hooks.sample_api import identify

LABELS = {**VERL_LABELS, "gen": "wait", "gen_max": "wait", "validate": "eval"}
"""Timers of the trainer -> stage. While agents run elsewhere, the trainer waits."""

_STORE = "agentlightning.store.collection_based:CollectionBasedLightningStore"
_RESOURCES = "update_resources add_resources"
_HANDING_OUT = "start_rollout start_attempt dequeue_rollout dequeue_many_rollouts"
_RUNNER = "agentlightning.runner.agent:LitAgentRunner"
_TRAINER = "agentlightning.verl.trainer"
_WAITING = "AglRolloutManager.enqueue_and_wait_until_completed "
_WAITING += "AglAsyncRolloutManager.enqueue_and_wait_until_group_completed"
_MANAGER = "agentlightning.verl.agl_rollout_manager"


def rollout_begins(call: Call) -> None:
    call.span.set(items=1)


def step_begins(call: Call) -> None:
    """The trainer is about to time a step, which gets the next number."""
    call.recorder.step = int(call.self.global_steps) - 1


def rollout_built(call: Call) -> None:
    """Times are the server's clock's; a rollout that never ran has no row."""
    built = call.result
    if built is None or built.running_at is None or built.finished_at is None:
        return
    offset_ns = time.time_ns() - time.monotonic_ns()
    times_s = built.running_at, built.finished_at
    # The server may have begun before this machine started, when its clock had no time.
    start_ns, end_ns = (max(1, round(at_s * 1e9) - offset_ns) for at_s in times_s)
    turns = built.triplets or []
    ids = [(turn.response or {}).get("token_ids") for turn in turns]
    logprobs = [(turn.response or {}).get("log_probs") for turn in turns]
    call.row(
        "trajectories",
        start_ns=start_ns,
        end_ns=end_ns,
        trajectory=identify(str(built.rollout_id)),
        prompt=identify(str(built.data_id)),
        turns=len(turns),
        response_tokens=sum(len(each or ()) for each in ids),
        token_ids=int(bool(ids) and all(ids)),
        logprobs=int(bool(logprobs) and all(logprobs)),
    )


class AgentLightning(TableAdapter):
    framework = "agentlightning"
    versions = ">=0.3,<1.1"
    labels = LABELS
    calls = (
        *in_versions(
            "<1",
            Hook(f"{_RUNNER}._step_impl", "rollout", before=rollout_begins),
            *methods(_STORE, _RESOURCES, "sync", after=store.resources_stored),
            *methods(_STORE, _HANDING_OUT, after=store.handed_out),
            Hook(f"{_STORE}._post_add_spans", before=store.told),
            Hook(f"{_STORE}._unlocked_update_attempt_and_rollout", after=store.attempt_updated),
            Hook(f"{_STORE}.wait_for_rollouts", after=store.waited_for),
            Hook(f"{_TRAINER}:AgentLightningTrainer._train_step", before=step_begins),
        ),
        *in_versions(
            ">=1",
            Hook(f"{_TRAINER}:AgentLightningRayPPOTrainer._rollout", "wait"),
            Hook(f"{_MANAGER}:AglRolloutManagerBase._build_completed_rollout", after=rollout_built),
            *methods(_MANAGER, _WAITING, "wait"),
        ),
    )
    timers = in_versions("<1", timed_block(f"{_TRAINER}:_timer", LABELS, "name"))
