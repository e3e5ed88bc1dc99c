"""prime-rl: episodes with the versions that generated them, weights out and in.

Its trainer is one function without a timer: a step begins where it waits for its batch. How long
forward and backward took is among its figures only. Versions are the trainer's steps.
"""

from __future__ import annotations

import os
from typing import Any

from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.logged import logged
from rltrace.adapters.table.rows import either, formerly
from rltrace.adapters.table.samples import uses
from rltrace.adapters.table.steps import step_begins, step_is
from rltrace.adapters.table.weights import phase_row, tensor_bytes, weights_moved
from rltrace.hooks.hook import Call, Hook
from rltrace.hooks.sample_api import identify
from rltrace.trace.vocabulary import Fate, Stage, SyncRole

_MOST_WAITING = 100_000  # traces that have been generated and not yet trained on
_waiting: dict[int, Any] = {}  # their rows, by trajectory
_SENDERS = "prime_rl.transports.weights"
_WATCHER = "prime_rl.orchestrator.watcher:WeightWatcher"
_MONITOR = "prime_rl.utils.monitor.multi:MultiMonitor"


def episode_ends(call: Call) -> None:
    """Each trace of an episode is a sample."""
    if call.stage != Stage.ROLLOUT:
        return
    for trace in getattr(call.result, "traces", ()):
        number = identify(str(trace.id))
        row = call.row("trajectories", trajectory=number)
        if row is not None and len(_waiting) < _MOST_WAITING:
            _waiting[number] = row


def episode_used(call: Call) -> None:
    """prime-rl says the versions that generated it; the step before's trains on it."""
    episode, step = call.argument("episode"), int(call.argument("training_step"))
    policy = call.function.__globals__["train_work"](episode).policy
    traces = [identify(str(trace.id)) for trace in getattr(episode, "traces", ())]
    # prime-rl asks once more for each of its figures.
    rows = {number: _waiting.pop(number) for number in traces if number in _waiting}
    for row in rows.values() if policy is not None else ():
        row.set(first_version=int(policy.start), last_version=int(policy.end))
    uses(call, Fate.TRAINED, [*rows], step=step, version=step - 1)


def update_begins(call: Call) -> None:
    call.span.set(version=int(call.argument("next_step")))


def update_ends(call: Call) -> None:
    if call.exception is None:
        weights_moved(call, SyncRole.SINK, int(call.argument("next_step")))


def broadcast_begins(call: Call) -> None:
    version = call.recorder.version = int(call.argument("step"))
    step_is(call.recorder, version)
    call.span.set(version=version, step=version)


def broadcast_ends(call: Call) -> None:
    """The trainer has sent the parameters of its model, which the first rank gathers from all."""
    if call.exception is None and os.environ.get("RANK", "0") == "0":
        size = tensor_bytes(call.argument("model").parameters())
        weights_moved(call, SyncRole.SOURCE, int(call.argument("step")), size)


def batch_awaited(call: Call) -> str:
    """The first thing that the trainer does in a step."""
    step_begins(call.recorder.step + 1)
    return "wait"


class PrimeRL(TableAdapter):
    framework = "prime_rl"
    versions = ">=0.8,<0.9"
    calls = (
        Hook(
            "prime_rl.orchestrator.envs:Env.run",
            after=episode_ends,
            **either(lambda call: type(call.self).__name__ != "EvalEnv", "rollout", "eval"),
        ),
        Hook("prime_rl.orchestrator.utils:episode_staleness", before=episode_used, optional=True),
        phase_row("load", f"{_WATCHER}.apply_policy_update", update_begins, update_ends),
        *formerly(
            {_SENDERS: "prime_rl.trainer.rl.broadcast"},
            *(
                phase_row("transfer", f"{_SENDERS}.{sender}", broadcast_begins, broadcast_ends)
                for sender in (
                    "filesystem:FileSystemWeightBroadcast.broadcast_weights",
                    "nccl:NCCLWeightBroadcast.broadcast_weights",
                )
            ),
        ),
        Hook("prime_rl.trainer.rl.data:DataLoader.wait_for_batch", batch_awaited, stages=("wait",)),
    )
    sinks = (
        Hook("prime_rl.monitors:log", before=logged("data"), optional=True),
        Hook(f"{_MONITOR}.log", before=logged("metrics"), optional=True),
    )
