"""The built-in trainer (`rltrace.trainer`): what to hook and read.

Fates and ratios are read where the controller books them, as a learner that dies takes its updates
with it. Rollout is when an engine generates, not when a sample waits for a tool. The actors' spans
have no step, since no actor knows which one will train on its samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from rltrace.adapters.table.logged import record_figures
from rltrace.adapters.table.samples import uses
from rltrace.adapters.table.weights import parameter_count
from rltrace.hooks.hook import Adapter, Call, Hook
from rltrace.hooks.sample_api import identify
from rltrace.hooks.spans import codes_of
from rltrace.trace.vocabulary import SyncRole, Transport

_END = ("last_version", "response_tokens", "turns", "preemptions")  # named as the trainer's fields
_VERDICT = ("value", "start_ns", "end_ns")
_USE = ("version", "tokens", "mean_log_ratio", "clip_share", "sum_w", "sum_w_squared")

_shared_id = lru_cache(256)(identify)  # of what many samples have in common


@lru_cache(256)
def _of_group(group: str, prompt: tuple[int, ...]) -> dict[str, int]:
    ids = {"group": identify(group), "prompt": identify(bytes(prompt))}
    return {**ids, "prompt_tokens": len(prompt)}


_generating: dict[str, Any] = {}  # rows of the trajectories that have begun here, by id
_load_ns: list[int] = []  # of the `receive` that is about to return


def _controller(call: Call) -> None:
    config = call.argument("config")
    call.recorder.describe(
        role="controller",
        placement=config.placement,
        objective=config.objective,
        advantage="grpo",
        updates_per_version=config.minibatches,  # fewer where a step has fewer samples
        drops_stale=True,  # its queue does, in every placement that has one
        settings=dict(vars(config)),
    )


def _rank(call: Call) -> None:
    call.recorder.describe(rank=call.argument("index"))


def _policy(call: Call) -> None:
    """Whoever holds a policy begins with version 0 of it."""
    _rank(call)
    model = call.self.engine.model if hasattr(call.self, "engine") else call.self.model
    call.recorder.describe(parameters=parameter_count(model))
    call.recorder.version = 0


def _work(call: Call) -> None:
    trajectories = call.argument("trajectories")
    tokens = sum(trajectory.response_tokens for trajectory in trajectories)
    call.span.set(items=len(trajectories), tokens=tokens)


def _row(call: Call, request: Any, first_version: int, **more: int) -> Any:
    more |= _of_group(request.group, request.prompt)
    id = identify(request.id)
    return call.row("trajectories", trajectory=id, first_version=first_version, **more)


def _prefill_begins(call: Call) -> None:
    """Of a batch that is read, those without a token begin here; the others come back to it."""
    begun = [s for s in call.argument("fresh") if not s.tokens]
    call.state = {s.request.id: _row(call, s.request, s.first_version) for s in begun}
    _generating.update(call.state)


def _first_tokens(call: Call) -> None:
    if call.exception is None:
        for row in call.state.values():
            row.set(first_token_ns=call.end_ns)


def _ended(call: Call) -> None:
    """A sample is complete. One that was cut off before it began is an event without a length."""
    request, trajectory = call.argument("sequence").request, call.result
    row = _generating.pop(request.id, None)
    if trajectory is not None:
        row = row or _row(call, request, -1, start_ns=call.end_ns)
        row.set(
            end_ns=call.end_ns,
            task=_shared_id(call.self.task.name),
            env_ns=round(trajectory.env_seconds * 1e9),
            finish=codes_of("Finish")[trajectory.finish],
            token_ids=trajectory.faithful,
            logprobs=trajectory.faithful,
            **{name: getattr(trajectory, name) for name in _END},
        )
        call.recorder.capture(row, trajectory.prompt, trajectory.tokens)


def _verdicts(call: Call) -> None:
    told, outcomes = call.result or (), codes_of("Outcome")
    columns = {name: [getattr(one, name) for one in told] for name in _VERDICT}
    columns["trajectory"] = [identify(one.trajectory) for one in told]
    columns["component"] = [call.recorder.name(one.component) for one in told]
    columns["outcome"] = [outcomes[one.outcome] for one in told]
    call.rows("rewards", len(told), **columns)


def _train(call: Call) -> None:
    """From here until it publishes, the learner works for this step."""
    samples = call.argument("samples")
    call.recorder.step = call.argument("step")
    tokens = sum(sample.trajectory.response_tokens for sample in samples)
    call.span.set(step=call.recorder.step, items=len(samples), tokens=tokens)


def _used(call: Call) -> None:
    report = call.argument("report")
    if report is not None and report.updates:
        record_figures(call, {"loss": report.loss, "kl": report.kl})
    booked = call.result if report is None else report.uses
    fates = [codes_of("Fate")[one.fate] for one in booked]
    columns = {name: [getattr(one, name) for one in booked] for name in _USE}
    uses(call, fates, [identify(one.trajectory) for one in booked], **columns)


def _published(call: Call) -> None:
    call.recorder.step = -1
    if call.result is not None:
        call.recorder.version = call.result.version
        _sync(call, SyncRole.SOURCE, call.result, call.end_ns - call.start_ns)


def _loaded(call: Call) -> None:
    _load_ns.append(call.end_ns - call.start_ns)


def _generates(call: Call) -> None:
    call.state = bool(call.self.engine.open)


def _received(call: Call) -> None:
    """Weights travel beside generation, where there is any; only loading them stops it."""
    load_ns = _load_ns.pop() if _load_ns else 0
    if call.result:  # 0: it had them already
        call.recorder.version = call.self.engine.version
        stall_ns = load_ns if call.state or call.self.engine.open else call.end_ns - call.start_ns
        _sync(call, SyncRole.SINK, call.argument("manifest"), stall_ns)


def _sync(call: Call, role: SyncRole, manifest: Any, stall_ns: int) -> None:
    moved = {"version": manifest.version, "bytes": manifest.bytes}
    call.span.set(**moved)
    if call.self.config.sync == "naive":  # the others record their own
        call.row("syncs", role=role, stall_ns=stall_ns, transport=Transport.OBJECT_STORE, **moved)


_TRAINER = "rltrace.trainer"
_ROLLOUT = f"{_TRAINER}.rollout:RolloutWorker"
_ENGINE = f"{_TRAINER}.learning.engine:Engine"
_REWARD = f"{_TRAINER}.reward:RewardWorker"
_REFERENCE = f"{_TRAINER}.learning.learner:Reference"
_LEARNER = f"{_TRAINER}.learning.learner:Learner"
_STORE = "rltrace.sync.object_store:ObjectStore"


class RayTrainer(Adapter):
    framework = _TRAINER
    hooks = (
        Hook(f"{_TRAINER}.run:run", before=_controller),
        Hook(f"{_TRAINER}.placement:Placement.step", "step", step=lambda c: c.argument("number")),
        Hook(f"{_TRAINER}.queue:TrajectoryQueue.take", "wait", name="samples for the next step"),
        Hook(f"{_TRAINER}.queue:TrajectoryQueue.admit", "wait", name="the lag bound"),
        Hook(f"{_ROLLOUT}.__init__", after=_policy),
        # Until it has nothing to do; a probe delays each iteration, as nobody waits for the end.
        Hook(f"{_ENGINE}._run", "rollout", name="Engine", dose=""),
        Hook(f"{_ENGINE}.iterate", dose="rollout"),
        Hook(f"{_ROLLOUT}.complete", after=_ended),
        Hook(f"{_ROLLOUT}.use_tool", "env"),
        Hook(f"{_ENGINE}.prefill", before=_prefill_begins, after=_first_tokens),
        Hook(f"{_REWARD}.__init__", after=_rank),
        Hook(f"{_REWARD}.score", "reward", before=_work, after=_verdicts),
        Hook(f"{_REFERENCE}.__init__", after=_policy),
        Hook(f"{_REFERENCE}.log_probs", "reference", before=_work),
        Hook(f"{_LEARNER}.__init__", after=_policy),
        Hook(f"{_LEARNER}.old_log_probs", "logprob", before=_work),
        Hook(f"{_LEARNER}.train", "train", before=_train),
        Hook(f"{_LEARNER}.update", "train"),
        Hook(f"{_TRAINER}.ledger:Ledger.trained", after=_used),
        Hook(f"{_TRAINER}.ledger:Ledger.drop", after=_used),
        Hook(f"{_LEARNER}.publish", "sync", after=_published),
        Hook(f"{_STORE}Publisher.gather", "sync", phase="gather"),
        Hook(f"{_STORE}Publisher.put", "sync", phase="transfer"),
        Hook(f"{_ROLLOUT}.receive", "sync", before=_generates, after=_received),
        Hook(f"{_STORE}Subscriber.fetch", "sync", phase="transfer"),
        Hook(f"{_ENGINE}.drain", "wait", name="running sequences"),
        Hook(f"{_STORE}Subscriber.load", "sync", phase="load", after=_loaded),
        Hook(f"{_LEARNER}.state", "checkpoint"),
        Hook(f"{_LEARNER}.restore", "checkpoint"),
        Hook(f"{_TRAINER}.checkpoint:Checkpoint.save", "checkpoint"),
    )
    roles: ClassVar[Mapping[str, str]] = {
        _ROLLOUT: "rollout", _REWARD: "reward", _REFERENCE: "reference", _LEARNER: "learner",
    }  # fmt: skip
