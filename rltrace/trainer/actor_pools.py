"""A job's actors, in pools of one role; the dead are replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, ObjectLostError, RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rltrace.trainer.config import RunFailed, TrainerConfig
from rltrace.trainer.learning.learner import Learner, Reference
from rltrace.trainer.reward import RewardWorker
from rltrace.trainer.rollout import RolloutWorker

LOST = (RayActorError, ObjectLostError, ActorUnschedulableError)
"""What a call raises when the actor that ran it, or the node that held its answer, is gone."""

START_SECONDS = 300.0  # to be there: it imports torch, on a busy machine or from a slow disk
ATTEMPTS = 3
PAUSE_SECONDS = 2.0  # between them; for a while Ray may still think that a dead node lives


class Pool:
    """Interchangeable actors of one role; `hire(index)` asks Ray for one."""

    def __init__(self, role: str, size: int, hire: Callable[[int], Any]) -> None:
        self.role, self.size, self.hire = role, size, hire
        self.members: dict[int, Any] = {}  # that work
        self.starting: dict[int, asyncio.Task[None]] = {}  # that will
        self.busy = dict.fromkeys(range(size), 0)
        self.welcome: Callable[[Any], Awaitable[None]] | None = None  # before an actor works
        self.on_loss: Callable[[str], None] = lambda event: None  # is told what happened

    async def start(self) -> None:
        """Waits until all members have started. Errors: `RunFailed` where none could."""
        for index in range(self.size):
            self.starting[index] = asyncio.create_task(self._start(index))
        await asyncio.wait(self.starting.values())
        await self._least_busy()

    async def once(self, method: str, *arguments: Any) -> Any:
        """Calls the least busy member. Errors: one of `LOST`; `RunFailed` when nobody is left."""
        index = await self._least_busy()
        member = self.members[index]
        self.busy[index] += 1
        try:
            return await getattr(member, method).remote(*arguments)
        except LOST as loss:
            self._replace(index, member, loss)
            raise
        finally:
            self.busy[index] -= 1

    async def call(self, method: str, *arguments: Any) -> Any:
        """As `once`, and of the next member when one dies. Errors: `RunFailed`."""
        for _ in range(ATTEMPTS):
            try:
                return await self.once(method, *arguments)
            except LOST:
                continue
        raise RunFailed(f"{ATTEMPTS} {self.role} workers died one after the other at the same work")

    async def all(self, method: str, *arguments: Any) -> list[Any]:
        """Calls a method of every member; those that die are replaced and give no result."""

        async def one(index: int, member: Any) -> list[Any]:
            try:
                return [await getattr(member, method).remote(*arguments)]
            except LOST as loss:
                self._replace(index, member, loss)
                return []

        results = await asyncio.gather(*(one(*item) for item in self.members.items()))
        return [result for found in results for result in found]

    async def _least_busy(self) -> int:
        while not self.members:
            if not self.starting:
                raise RunFailed(f"no {self.role} worker is left and none could be started")
            await asyncio.wait(self.starting.values(), return_when=asyncio.FIRST_COMPLETED)
        return min(self.members, key=self.busy.__getitem__)

    def _replace(self, index: int, lost: Any, loss: Exception) -> None:
        """Starts another actor in the place of a lost one, once, whoever finds out first."""
        if isinstance(loss, RayTaskError):
            return  # the actor lives: what it was to read is lost
        if self.members.get(index) is lost:
            del self.members[index]
            ray.kill(lost)  # it may be a node out of reach, not dead
            self.on_loss(f"{self.role} worker {index} died; another is started in its place")
            self.starting[index] = asyncio.create_task(self._start(index))

    async def _start(self, index: int) -> None:
        try:
            for _ in range(ATTEMPTS):
                member = self.hire(index)
                try:
                    await asyncio.wait_for(self._enter(index, member), START_SECONDS)
                    return
                except LOST:
                    self.on_loss(f"{self.role} worker {index} died as it started")
                    await asyncio.sleep(PAUSE_SECONDS)
                except asyncio.TimeoutError:
                    break  # there is no room for it
                finally:
                    if index not in self.members:
                        ray.kill(member)
            left = len(self.members)
            self.on_loss(f"{self.role} worker {index} could not be started: {left} left")
        finally:
            del self.starting[index]

    async def _enter(self, index: int, member: Any) -> None:
        await member.__ray_ready__.remote()
        if self.welcome is not None:
            await self.welcome(member)
        self.members[index] = member  # at once: nothing may change between welcome and work


@dataclass(frozen=True)
class Crew:
    """All actors; the learner and the reference are pools of one."""

    rollout: Pool
    reward: Pool
    reference: Pool
    learner: Pool

    @property
    def pools(self) -> tuple[Pool, ...]:
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
