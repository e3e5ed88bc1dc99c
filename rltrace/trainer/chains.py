"""The actors' chain and the learner's, which every placement runs its way."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ray.exceptions import ObjectLostError

from rltrace.sync.transports import PublishedVersion
from rltrace.trainer.actor_pools import ATTEMPTS, LOST, Crew
from rltrace.trainer.checkpoint import Checkpoint
from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.learning.grpo import group_advantages
from rltrace.trainer.ledger import Ledger
from rltrace.trainer.task import task_of
from rltrace.trainer.trajectory import Request, Sample, TrainReport

log = logging.getLogger("rltrace.trainer")


class Chains:
    def __init__(
        self, config: TrainerConfig, crew: Crew, ledger: Ledger, checkpoint: Checkpoint
    ) -> None:
        self.config, self.crew, self.ledger = config, crew, ledger
        self.checkpoint = checkpoint
        self.task = task_of(config)
        self.version = checkpoint.version
        self.unsaved: list[int] = []  # steps whose learning is in no checkpoint
        self.manifest: PublishedVersion | None = None  # of the newest version
        self.prompts = lru_cache(8)(self._prompts)  # of the newest batches
        crew.learner.welcome = lambda actor: actor.restore.remote(checkpoint.state, self.version)
        crew.rollout.welcome = self._bring_up_to_date
        for pool in crew.pools:
            pool.on_loss = self._note

    def requests(self, batch: int, group: int) -> list[Request]:
        prompt, name = self.prompts(batch)[group], f"{batch}/{group}"
        return [Request(f"{name}/{sample}", name, prompt) for sample in range(self.config.samples)]

    def _prompts(self, batch: int) -> list[tuple[int, ...]]:
        groups = math.ceil(self.config.prompts * self.config.oversample)
        return self.task.prompts(groups, f"{self.config.seed}/{batch}")

    async def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """A trajectory for each request. What a dying worker takes along is asked for again, under
        a new id; a group that is lost each time is given up."""
        for attempt in range(ATTEMPTS):
            if attempt:
                requests = [replace(r, id=f"{r.id.partition('~')[0]}~{attempt}") for r in requests]
            try:
                trajectories = await self.crew.rollout.once("generate", requests)
            except LOST:
                self.ledger.lost(len(requests))
                continue
            self.ledger.generated(trajectories)
            return [Sample(trajectory) for trajectory in trajectories]
        self._note(f"group {requests[0].group} is given up: its workers died {ATTEMPTS} times")
        return []

    async def score(self, samples: Sequence[Sample]) -> None:
        judged = [s for s in samples if s.trajectory.ended]
        if judged:
            rewards = await self.crew.reward.call("score", [s.trajectory for s in judged])
            for sample, reward in zip(judged, rewards, strict=True):
                sample.reward = reward.value
        self.ledger.scored(judged)
        groups = [s.trajectory.group for s in samples]
        values = group_advantages([s.reward for s in samples], groups)
        for sample, advantage in zip(samples, values.tolist(), strict=True):
            sample.advantage = advantage

    async def refer(self, samples: Sequence[Sample]) -> None:
        judged = [s for s in samples if not math.isnan(s.reward)]
        if judged:
            found = await self.crew.reference.call("log_probs", [s.trajectory for s in judged])
            for sample, log_probs in zip(judged, found, strict=True):
                sample.reference = log_probs

    async def produce(self, requests: Sequence[Request]) -> list[Sample]:
        """The actors' chain of one group; one that was cut is not judged any more."""
        samples = await self.generate(requests)
        if any(sample.trajectory.finish == "abort" for sample in samples):
            return samples
        await self.judge(samples)
        return samples

    async def judge(self, samples: Sequence[Sample]) -> None:
        await self.score(samples)
        if self.config.reference_side == "actor":
            await self.refer(samples)

    async def cut(self, requests: Sequence[Request]) -> None:
        retried = [f"{r.id}~{attempt}" for r in requests for attempt in range(1, ATTEMPTS)]
        await self.crew.rollout.all("abort", [r.id for r in requests] + retried)

    def drop(self, samples: Sequence[Sample], fate: str) -> None:
        """Samples that are not trained on; the ledger keeps the reason."""
        if samples:
            self.ledger.drop([s.trajectory for s in samples], fate, self.version)

    async def learn(self, number: int, samples: Sequence[Sample], max_lag: int) -> bool:
        """One learner step and its publication, also without a sample: what may begin is counted in
        versions. False when the learner died: its newest checkpoint is the next version."""
        fates = [(self._fate(s, max_lag), s) for s in samples]
        chosen = [s for fate, s in fates if not fate]
        for fate in sorted({fate for fate, _ in fates} - {""}):
            self.drop([s for its, s in fates if its == fate], fate)
        try:
            await self._train(number, chosen)
        except LOST:
            self.drop(chosen, "failed")
            event = f"step {number} is made again, from the weights before step"
            self._note(f"{event} {self.checkpoint.step}{_lost(self.unsaved)}")
            self.unsaved = []
            await self.publish()
            return False
        return True

    async def _train(self, number: int, samples: list[Sample]) -> None:
        learner, config = self.crew.learner, self.config
        trajectories = [s.trajectory for s in samples]
        if config.reference_side == "learner":
            await self.refer(samples)
        is_recomputed = config.recompute_old or config.retokenize
        if samples and (is_recomputed or config.objective == "decoupled"):
            found = await learner.once("old_log_probs", trajectories)
            for sample, log_probs in zip(samples, found, strict=True):
                sample.proximal = log_probs
        report: TrainReport = await learner.once("train", number, samples)
        done = number + 1
        if done % config.checkpoint_every == 0 or done == config.steps:
            await self._save(done)
        self._published(await learner.once("publish"))
        if self.checkpoint.step != done:
            self.unsaved.append(number)
        self.ledger.trained(report)

    async def publish(self) -> None:
        """The learner's weights become the next version, even if it dies meanwhile."""
        self._published(await self.crew.learner.call("publish"))

    def _published(self, manifest: PublishedVersion) -> None:
        self.manifest, self.version = manifest, manifest.version

    async def distribute(self) -> None:
        """Brings the newest version to all rollout workers; those that start get it as they do."""
        manifest = self.manifest
        assert manifest is not None, "something was published"
        for bytes in await self.crew.rollout.all("receive", manifest):
            self.ledger.received(bytes)

    def _fate(self, sample: Sample, max_lag: int) -> str:
        """Why it is not trained on; empty where it is."""
        if math.isnan(sample.reward):
            return "failed"
        if self.version - sample.trajectory.first_version > max_lag:
            return "stale"
        if self.config.drop_truncated and sample.trajectory.finish == "length":
            return "truncated"
        return "zero-advantage" if sample.advantage == 0 else ""

    def _note(self, event: str) -> None:
        self.ledger.events.append(event)
        log.warning(event)

    async def resume(self) -> None:
        """Goes on from the checkpoint: its weights become the next version, everywhere."""
        log.warning("goes on from step %d, of %s", self.checkpoint.step, self.checkpoint.path)
        await self.crew.learner.call("restore", self.checkpoint.state, self.version)
        await self.publish()
        await self.distribute()

    async def _bring_up_to_date(self, worker: Any) -> None:
        brought = None
        while brought is not self.manifest:  # a newer one may come meanwhile
            brought = self.manifest
            try:
                self.ledger.received(await worker.receive.remote(brought))
            except ObjectLostError:
                pass  # the learner died with it: the worker gets the one that comes then

    async def _save(self, step: int) -> None:
        state = await self.crew.learner.once("state")
        try:
            self.unsaved = []  # in memory it is kept in any case
            await asyncio.to_thread(self.checkpoint.save, step, self.version, state)
        except OSError as error:
            self._note(f"the checkpoint before step {step} is not in its file: {error.strerror}")


def _lost(steps: Sequence[int]) -> str:
    if not steps:
        return ""
    *others, last = map(str, steps)
    named = f"steps {', '.join(others)} and {last}" if others else f"step {last}"
    return f": the learning of {named} is lost"
