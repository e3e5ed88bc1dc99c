"""A crew without Ray: the actors are objects of this process, so that a run takes a moment.

What Ray adds (processes, serialization, deaths) is for the tests that start it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace.testing.inside.sync import flat_layout_of as layout_of
from rltrace.testing.inside.sync import interface_Manifest as Manifest
from rltrace.testing.inside.sync import pack
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
    initial_weights,
    policy_of,
    train_with,
)
from tests.patience import PATIENCE_S


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
        self.welcome: Any = None
        self.on_loss: Any = None

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
    """A whole run on the real roles, chains and placements. What takes four minutes, hangs."""
    weights, transport = initial_weights(config), InProcess()
    rollout = [RolloutWorker(config, index, weights) for index in range(config.rollout_workers)]
    learner = Learner(config, 0, weights)
    learner.publisher = cast("Any", transport)
    for worker in rollout:
        worker.subscriber = cast("Any", _Fetching(worker.subscriber, transport))
    pools = (
        rollout,
        [reward(config, index) for index in range(config.reward_workers)],
        [Reference(config, 0, weights)],
        [learner],
    )
    crew = Crew(*(cast("Pool", LocalPool(members)) for members in pools))
    ledger = Ledger(config, sum(p.numel() for p in policy_of(config).parameters()))
    work = train_with(config, crew, ledger, Checkpoint(config), on_step or (lambda record: None))
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))
    return ledger


@dataclasses.dataclass
class _Fetching:
    """A subscriber that loads as it always does and fetches from this process."""

    subscriber: Any
    transport: InProcess

    def fetch(self, manifest: Manifest) -> NDArray[np.uint8]:
        return self.transport.fetch(manifest)

    def load(self, *arguments: Any) -> int:
        return int(self.subscriber.load(*arguments))
