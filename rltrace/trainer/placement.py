"""Placements: who runs when. A placement drives the actors through learner steps.

`colocated` is strictly on policy: every stage waits for the one before, as on devices that all
roles share, so nothing is ever trained on with a lag.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import ray
from numpy.typing import NDArray

from rltrace.sync.interface import Manifest
from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.grpo import group_advantages
from rltrace.trainer.ledger import StepRecord
from rltrace.trainer.roles import task_of
from rltrace.trainer.trajectory import Request, Reward, Sample, TrainReport, Trajectory


@dataclass(frozen=True)
class Crew:
    """Handles of the actors."""

    rollout: list[Any]
    reward: list[Any]
    reference: Any
    learner: Any


class Placement(Protocol):
    """A way of running the loop."""

    def run(self) -> Iterator[StepRecord]:
        """Trains, and yields the record of each learner step when it is done."""


class Colocated:
    """rollout, reward, reference, train, sync: one after the other."""

    def __init__(self, config: TrainerConfig, crew: Crew) -> None:
        self.config = config
        self.crew = crew
        self.task = task_of(config)

    def run(self) -> Iterator[StepRecord]:
        """As `Placement.run`."""
        for number in range(self.config.steps):
            yield self.step(number)

    def step(self, number: int) -> StepRecord:
        """One learner step."""
        clock = StageClock()
        with clock.stage("rollout"):
            trajectories = self.rollout(number)
        with clock.stage("reward"):
            rewards = self.reward(trajectories)
        with clock.stage("reference"):
            reference = self.reference(trajectories)
        with clock.stage("train"):
            report = self.train(number, trajectories, rewards, reference)
        with clock.stage("sync"):
            sync_bytes = self.sync()
        return record_of(trajectories, rewards, report, sync_bytes, clock)

    def rollout(self, number: int) -> list[Trajectory]:
        """K samples for each prompt of the batch, spread over the workers prompt by prompt."""
        prompts = self.task.prompts(self.config.prompts, f"{self.config.seed}/{number}")
        requests = [
            Request(f"{number}/{group}/{sample}", f"{number}/{group}", number, prompt)
            for group, prompt in enumerate(prompts)
            for sample in range(self.config.samples)
        ]
        workers = self.crew.rollout
        return _concatenated(
            worker.generate.remote(number, requests[index :: len(workers)])
            for index, worker in enumerate(workers)
        )

    def reward(self, trajectories: Sequence[Trajectory]) -> list[Reward]:
        """A verdict for each trajectory, in their order."""
        workers = self.crew.reward
        share = -(-len(trajectories) // len(workers))
        return _concatenated(
            worker.score.remote(trajectories[index * share : (index + 1) * share])
            for index, worker in enumerate(workers)
        )

    def reference(self, trajectories: Sequence[Trajectory]) -> list[NDArray[np.float32]]:
        """Log-probabilities of each trajectory under the reference policy."""
        log_probs: list[NDArray[np.float32]] = ray.get(
            self.crew.reference.log_probs.remote(trajectories)
        )
        return log_probs

    def train(
        self,
        number: int,
        trajectories: Sequence[Trajectory],
        rewards: Sequence[Reward],
        reference: Sequence[NDArray[np.float32]],
    ) -> TrainReport:
        """Turns rewards into advantages and trains."""
        advantages = group_advantages([r.value for r in rewards], [t.group for t in trajectories])
        samples = [
            Sample(trajectory, float(advantage), log_probs)
            for trajectory, advantage, log_probs in zip(
                trajectories, advantages, reference, strict=True
            )
        ]
        report: TrainReport = ray.get(self.crew.learner.train.remote(number, samples))
        return report

    def sync(self) -> int:
        """Publishes the new weights and waits until every rollout worker shows them."""
        manifest: Manifest = ray.get(self.crew.learner.publish.remote())
        ray.get([worker.receive.remote(manifest) for worker in self.crew.rollout])
        return manifest.bytes * len(self.crew.rollout)


PLACEMENTS: dict[str, Callable[[TrainerConfig, Crew], Placement]] = {"colocated": Colocated}


class StageClock:
    """Wall-clock of the stages of one step."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times one stage."""
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


def record_of(
    trajectories: Sequence[Trajectory],
    rewards: Sequence[Reward],
    report: TrainReport,
    sync_bytes: int,
    clock: StageClock,
) -> StepRecord:
    """The books of one step."""
    trained = [use for use in report.uses if use.fate == "trained"]
    return StepRecord(
        step=report.step,
        version=report.version,
        reward=sum(r.value for r in rewards) / len(rewards),
        samples=len(trajectories),
        prompt_tokens=sum(len(t.prompt) for t in trajectories),
        tokens_generated=sum(len(t.tokens) for t in trajectories),
        tokens_trained=report.tokens,
        optimizer_updates=report.updates,
        finish=dict(Counter(t.finish for t in trajectories)),
        lags=dict(Counter(use.lag for use in trained)),
        drops=dict(Counter(use.fate for use in report.uses if use.fate != "trained")),
        loss=report.loss if trained else None,
        kl=report.kl if trained else None,
        sync_bytes=sync_bytes,
        seconds=time.perf_counter() - clock.started,
        stage_seconds=clock.seconds,
    )


def _concatenated(calls: Iterator[Any]) -> list[Any]:
    """The lists that remote calls return, as one; all calls are made before any is awaited."""
    return [item for part in ray.get(list(calls)) for item in part]
