"""The actors of a job, in pools of one role. An actor that dies is replaced, and told what to do.

A worker that cannot be replaced (its node is gone and there is no room elsewhere) leaves its pool;
the run goes on with the others, and ends with one clear sentence when there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rltrace.trainer.config import TrainerConfig, TrainerError
from rltrace.trainer.learner import Learner, Reference
from rltrace.trainer.reward import RewardWorker
from rltrace.trainer.rollout import RolloutWorker

LOST = (RayActorError, ObjectLostError)
"""What a call raises when the actor that ran it, or the node that held its answer, is gone."""

REPLACE_SECONDS = 60.0
ATTEMPTS = 3

Welcome = Callable[[Any], Awaitable[None]]


class Pool:
    """Interchangeable actors of one role; `hire(index)` starts one."""

    def __init__(self, role: str, size: int, hire: Callable[[int], Any]) -> None:
        self.role = role
        self.hire = hire
        self.members: dict[int, Any] = {index: hire(index) for index in range(size)}
        self.busy = dict.fromkeys(self.members, 0)
        self.locks = {index: asyncio.Lock() for index in self.members}
        self.welcome: Welcome | None = None  # brings a replacement up to date before it works
        self.on_loss: Callable[[str], None] = lambda event: None  # is told what happened

    async def ready(self) -> None:
        """Waits until all members have started."""
        await asyncio.gather(*(m.__ray_ready__.remote() for m in self.members.values()))

    async def call(self, method: str, *arguments: Any, attempts: int = ATTEMPTS) -> Any:
        """Calls a method of the least busy member; when that dies, of the next one.

        Errors: the last loss, after so many attempts; `TrainerError` when no member is left.
        """
        for attempt in range(1, attempts + 1):
            index = min(self.members, key=self.busy.__getitem__, default=-1)
            if index < 0:
                raise TrainerError(f"no {self.role} worker is left and none could be started")
            member = self.members[index]
            self.busy[index] += 1
            try:
                return await getattr(member, method).remote(*arguments)
            except LOST:
                await self.replace(index, member)
                if attempt == attempts:
                    raise
            finally:
                self.busy[index] -= 1
        raise AssertionError("attempts are at least 1")

    async def all(self, method: str, *arguments: Any) -> list[Any]:
        """Calls a method of every member; those that die are replaced and give no result."""

        async def one(index: int, member: Any) -> Any:
            try:
                return await getattr(member, method).remote(*arguments)
            except LOST:
                await self.replace(index, member)
                return None

        results = await asyncio.gather(*(one(*item) for item in list(self.members.items())))
        return [result for result in results if result is not None]

    async def replace(self, index: int, lost: Any) -> None:
        """Puts another actor in the place of a lost one, once, whoever finds out first."""
        async with self.locks[index]:
            if self.members.get(index) is not lost:
                return
            ray.kill(lost)  # it may be a node out of reach, not dead
            member = self.hire(index)
            try:
                await asyncio.wait_for(self._start(member), REPLACE_SECONDS)
            except (*LOST, asyncio.TimeoutError):
                ray.kill(member)
                del self.members[index]
                left = len(self.members)
                self.on_loss(f"{self.role} worker {index} is lost and has no room: {left} left")
            else:
                self.members[index] = member
                self.on_loss(f"{self.role} worker {index} died and was replaced")

    async def _start(self, member: Any) -> None:
        await member.__ray_ready__.remote()
        if self.welcome is not None:
            await self.welcome(member)


@dataclass(frozen=True)
class Crew:
    """All actors; the learner and the reference are pools of one."""

    rollout: Pool
    reward: Pool
    reference: Pool
    learner: Pool

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The four of them."""
        return (self.rollout, self.reward, self.reference, self.learner)


def hire(
    config: TrainerConfig, weights: Any, places: Mapping[str, tuple[PlacementGroup, int]]
) -> Crew:
    """Starts the actors in their places; `weights` is a Ray object. They end with their handles."""

    def pool(role: str, kind: type, size: int, *arguments: Any) -> Pool:
        def start(index: int) -> Any:
            group, bundle = places[f"{role}/{index}"]
            where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
            options = {"num_cpus": 1, "scheduling_strategy": where}
            return ray.remote(**options)(kind).remote(config, index, *arguments)

        return Pool(role, size, start)

    return Crew(
        rollout=pool("rollout", RolloutWorker, config.rollout_workers, weights),
        reward=pool("reward", RewardWorker, config.reward_workers),
        reference=pool("reference", Reference, 1, weights),
        learner=pool("learner", Learner, 1, weights),
    )
