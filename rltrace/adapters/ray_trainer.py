"""The built-in trainer (`rltrace.trainer`), seen from outside: what to hook and what to read.

Every quantity is read where it is known: generation in the engine, verdicts in the reward workers,
fates and ratios at the optimizer's update, weights at both ends of the object store. Nothing is
estimated; what the trainer does not do (environments, critics, recomputed log-probs) stays unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from rltrace.hooks.hook import Adapter, Call, Hook
from rltrace.hooks.identity import identify
from rltrace.trace.vocabulary import Fate, Finish, Outcome, SyncRole, Transport, word

_FATES = {word(fate): int(fate) for fate in Fate}
_FINISHES = {word(finish): int(finish) for finish in Finish}
_OUTCOMES = {word(outcome): int(outcome) for outcome in Outcome}

_shared_id = lru_cache(256)(identify)  # of groups and prompts, which many samples have in common
_generating: dict[str, Any] = {}  # rows of trajectories that have begun here, by id


def _rank(call: Call) -> None:
    call.recorder.describe(rank=call.argument("index"))


def _parameters(call: Call) -> None:
    call.recorder.describe(parameters=sum(p.numel() for p in call.self.model.parameters()))


def _belongs_to_step(call: Call) -> None:
    """An actor learns from its arguments which step it works for; its later spans inherit it."""
    step = call.argument("step", call.argument("batch"))
    if step is None:
        step = call.argument("trajectories")[0].batch
    call.recorder.step = step
    call.span.set(step=step)


def _rollout(call: Call) -> None:
    if call.result is not None:
        call.span.set(items=len(call.result), tokens=sum(len(t.tokens) for t in call.result))


def _sequence_starts(call: Call) -> None:
    request = call.result.request
    _generating[request.id] = call.recorder.append(
        "trajectories",
        start_ns=call.start_ns,
        trajectory=identify(request.id),
        group=_shared_id(request.group),
        prompt=_shared_id(bytes(request.prompt)),
        first_version=call.result.first_version,
        prompt_tokens=len(request.prompt),
        token_ids=1,
        logprobs=1,
    )


def _first_tokens(call: Call) -> None:
    for sequence in call.argument("fresh"):
        row = _generating.get(sequence.request.id)
        if row is not None and call.exception is None:
            row.set(first_token_ns=call.end_ns)


def _sequence_ends(call: Call) -> None:
    trajectory = call.result
    row = None if trajectory is None else _generating.pop(trajectory.id, None)
    if row is not None:
        row.set(
            end_ns=call.end_ns,
            last_version=trajectory.last_version,
            response_tokens=len(trajectory.tokens),
            finish=_FINISHES[trajectory.finish],
        )


def _trajectories_given(call: Call) -> None:
    trajectories = call.argument("trajectories")
    call.span.set(items=len(trajectories), tokens=sum(len(t.tokens) for t in trajectories))
    _belongs_to_step(call)


def _verdict(call: Call) -> None:
    reward = call.result
    call.recorder.append(
        "rewards",
        start_ns=call.start_ns,
        end_ns=call.end_ns,
        trajectory=identify(call.argument("trajectory").id),
        component=call.recorder.name(call.self.task.rule),
        value=float("nan") if reward is None else reward.value,
        outcome=_OUTCOMES["error" if reward is None else reward.outcome],
    )


def _trained(call: Call) -> None:
    report = call.result
    if report is not None:
        call.span.set(tokens=report.tokens, items=len(report.uses), version=report.version)
        _uses(call, [use for use in report.uses if use.fate != "trained"])


def _updated(call: Call) -> None:
    if call.result is not None:
        _uses(call, call.result[0])


def _uses(call: Call, uses: list[Any]) -> None:
    recorder = call.recorder
    for use in uses:
        recorder.append(
            "uses",
            time_ns=call.end_ns,
            trajectory=identify(use.trajectory),
            step=recorder.step,
            version=call.self.version,
            fate=_FATES[use.fate],
            tokens=use.tokens,
            mean_log_ratio=use.mean_log_ratio,
            clip_share=use.clip_share,
            sum_w=use.sum_w,
            sum_w_squared=use.sum_w_squared,
        )


def _published(call: Call) -> None:
    if call.result is not None:
        call.recorder.version = call.result.version
        _sync(call, SyncRole.SOURCE, call.result)


def _received(call: Call) -> None:
    if call.result is not None:
        call.recorder.version = call.result
        _sync(call, SyncRole.SINK, call.argument("manifest"))


def _sync(call: Call, role: SyncRole, manifest: Any) -> None:
    call.span.set(version=manifest.version, bytes=manifest.bytes)
    call.recorder.append(
        "syncs",
        start_ns=call.start_ns,
        end_ns=call.end_ns,
        version=manifest.version,
        role=role,
        stall_ns=call.end_ns - call.start_ns,  # neither side does anything else meanwhile
        bytes=manifest.bytes,
        wire_bytes=manifest.bytes,
        buckets=1,
        transport=Transport.OBJECT_STORE,
    )


_ROLES = "rltrace.trainer.roles"
_ROLLOUT = f"{_ROLES}:RolloutWorker"
_ENGINE = "rltrace.trainer.engine:Engine"
_PLACEMENT = "rltrace.trainer.placement"
_STORE = "rltrace.sync.object_store"


class RayTrainer(Adapter):
    """The built-in trainer."""

    framework = "rltrace.trainer"
    hooks = (
        Hook(
            "rltrace.trainer.run:run", before=lambda call: call.recorder.describe(role="controller")
        ),
        Hook(f"{_PLACEMENT}:Colocated.step", "step", step=lambda call: call.argument("number")),
        Hook(f"{_ROLLOUT}.__init__", after=_rank),
        Hook(f"{_ROLLOUT}.generate", "rollout", before=_belongs_to_step, after=_rollout),
        Hook(f"{_ENGINE}.start", after=_sequence_starts),
        Hook(f"{_ENGINE}.prefill", after=_first_tokens),
        Hook(f"{_ENGINE}.finish", after=_sequence_ends),
        Hook(f"{_ROLES}:RewardWorker.score", "reward", before=_trajectories_given),
        Hook(f"{_ROLES}:RewardWorker.verify", after=_verdict),
        Hook(f"{_ROLES}:Reference.log_probs", "reference", before=_trajectories_given),
        Hook(f"{_ROLES}:Learner.__init__", after=_parameters),
        Hook(f"{_ROLES}:Learner.train", "train", before=_belongs_to_step, after=_trained),
        Hook(f"{_ROLES}:Learner.update", after=_updated),
        Hook(f"{_ROLES}:Learner.publish", "sync", after=_published),
        Hook(f"{_STORE}:ObjectStorePublisher.gather", "sync", phase="gather"),
        Hook(f"{_STORE}:ObjectStorePublisher.put", "sync", phase="transfer"),
        Hook(f"{_ROLLOUT}.receive", "sync", after=_received),
        Hook(f"{_STORE}:ObjectStoreSubscriber.fetch", "sync", phase="transfer"),
        Hook(f"{_STORE}:ObjectStoreSubscriber.load", "sync", phase="load"),
    )
    roles: ClassVar[Mapping[str, str]] = {
        _ROLLOUT: "rollout",
        f"{_ROLES}:RewardWorker": "reward",
        f"{_ROLES}:Reference": "reference",
        f"{_ROLES}:Learner": "learner",
    }
