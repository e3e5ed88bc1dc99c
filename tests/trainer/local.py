"""A crew without Ray: the actors are objects of this process, so that a run takes a moment.

What Ray adds (processes, serialization, deaths) is for the tests that start it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace.testing.inside.sync import PublishedVersion as Manifest
from rltrace.testing.inside.sync import layout_of, pack
from rltrace.testing.inside.trainer import (
    Checkpoint,
    Crew,
    Learner,
    Ledger,
    Pool,
    Reference,
    RewardWorker,
    RolloutWorker,
    StepRecord,
    TrainerConfig,
    Trajectory,
    initial_weights,
    policy_of,
    train_with,
)
from tests.patience import PATIENCE_S

P = ParamSpec("P")
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Nothing here takes long: what does, hangs."""
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def asynchronous(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def in_a_loop(*arguments: P.args, **named: P.kwargs) -> T:
        return run(test(*arguments, **named))

    return in_a_loop


def trajectory(
    id: str = "0/0/0", prompt: Sequence[int] = (2, 3, 1), tokens: Sequence[int] = (), **facts: Any
) -> Trajectory:
    """One that a worker may have made."""
    known = {
        "generated": np.ones(len(tokens), dtype=np.bool_),
        "log_probs": np.zeros(len(tokens), dtype=np.float32),
        "first_version": 0, "last_version": 0, "finish": "stop", "turns": 1, "env_seconds": 0.0,
        "preemptions": 0,
    }  # fmt: skip
    request = (id, id.rpartition("/")[0], tuple(prompt))
    return Trajectory(*request, np.array(tokens, dtype=np.int64), **{**known, **facts})


class InProcess:
    """Weights that stay where they are: a publisher, and what a subscriber fetches with."""

    def __init__(self) -> None:
        self.fetched = 0

    def publish(self, version: int, state: Mapping[str, torch.Tensor]) -> Manifest:
        layout = layout_of(state)
        buffer = pack(state, layout)
        return Manifest(version, layout, buffer.nbytes, location=buffer)

    def fetch(self, manifest: Manifest) -> NDArray[np.uint8]:
        self.fetched += 1
        return cast("NDArray[np.uint8]", manifest.location)


class LocalPool:
    """As the trainer's `Pool`: a synchronous actor does one thing at a time."""

    def __init__(self, members: Sequence[Any]) -> None:
        self.members = members
        self.busy = [0] * len(members)
        self.locks = [asyncio.Lock() for _ in members]

    async def start(self) -> None:
        """They are there."""

    async def call(self, method: str, *arguments: Any) -> Any:
        index = min(range(len(self.members)), key=self.busy.__getitem__)
        self.busy[index] += 1
        try:
            return await self._on(index, method, *arguments)
        finally:
            self.busy[index] -= 1

    once = call

    async def all(self, method: str, *arguments: Any) -> list[Any]:
        calls = (self._on(index, method, *arguments) for index in range(len(self.members)))
        return [result for result in await asyncio.gather(*calls) if result is not None]

    async def _on(self, index: int, method: str, *arguments: Any) -> Any:
        work = getattr(self.members[index], method)
        if inspect.iscoroutinefunction(work):
            return await work(*arguments)
        async with self.locks[index]:
            return await asyncio.to_thread(work, *arguments)


def train_locally(
    config: TrainerConfig,
    on_step: Callable[[StepRecord], None] | None = None,
    reward: type[RewardWorker] = RewardWorker,
) -> Ledger:
    """A whole run on the real roles, chains and placements."""
    weights, transport = initial_weights(config), InProcess()
    rollout = [RolloutWorker(config, index, weights) for index in range(config.rollout_workers)]
    learner = Learner(config, 0, weights)
    learner.publisher = cast("Any", transport)
    for worker in rollout:
        setattr(worker.subscriber, "fetch", transport.fetch)  # noqa: B010
    pools = (
        rollout,
        [reward(config, index) for index in range(config.reward_workers)],
        [Reference(config, 0, weights)],
        [learner],
    )
    crew = Crew(*(cast("Pool", LocalPool(members)) for members in pools))
    ledger = Ledger(config, sum(p.numel() for p in policy_of(config).parameters()))
    run(train_with(config, crew, ledger, Checkpoint(config), on_step or (lambda record: None)))
    return ledger


def accounted(ledger: Ledger) -> list[StepRecord]:
    """All records of a run that made all its steps: every sample that ended is trained on, dropped
    for a reason, or was left over."""
    assert ledger.after is not None
    assert [record.step for record in ledger.steps] == list(range(ledger.config.steps))
    records = [*ledger.steps, ledger.after]
    ended = sum(record.samples for record in records)
    trained = sum(total(record.lags) for record in records)
    dropped = sum(total(record.drops) for record in records)
    assert ended == trained + dropped + ledger.unused
    return records


def total(counts: Mapping[Any, int]) -> int:
    return sum(counts.values())
