"""The four roles of the job, each a Ray actor: rollout, reward, reference and learner.

They start from the same seed, hence from the same weights, which are policy version 0.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace.sync.interface import Manifest
from rltrace.sync.object_store import ObjectStorePublisher, ObjectStoreSubscriber
from rltrace.trainer import grpo
from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.engine import Engine
from rltrace.trainer.model import ModelShape, Transformer, next_token_log_probs
from rltrace.trainer.task import Task
from rltrace.trainer.trajectory import Request, Reward, Sample, TrainReport, Trajectory, Use


def task_of(config: TrainerConfig) -> Task:
    """The task that a run is about."""
    return Task(config.task, config.symbols, config.shortest, config.longest)


def policy_of(config: TrainerConfig) -> Transformer:
    """The initial policy of a run. Roles compute on one thread each: they share the machine."""
    torch.set_num_threads(1)
    vocabulary = task_of(config).vocabulary
    shape = ModelShape(vocabulary, config.context, config.width, config.layers, config.heads)
    return Transformer(shape, config.seed)


class RolloutWorker:
    """Generates trajectories with the newest weights it was given."""

    def __init__(self, config: TrainerConfig, index: int) -> None:
        self.engine = Engine(policy_of(config), config.max_running, config.max_response)
        self.subscriber = ObjectStoreSubscriber()
        self.seed = f"{config.seed}/{index}"

    def generate(self, batch: int, requests: Sequence[Request]) -> list[Trajectory]:
        """Samples all requests of a batch; returns them in the order in which they finished."""
        seed = random.Random(f"{self.seed}/{batch}").getrandbits(62)
        return self.engine.generate(requests, seed)

    def receive(self, manifest: Manifest) -> int:
        """Takes over published weights; returns the policy version that is now visible."""
        version = self.subscriber.receive(manifest, self.engine.model.state_dict())
        self.engine.version = version
        return version


class RewardWorker:
    """Scores trajectories with the task's verifier."""

    def __init__(self, config: TrainerConfig) -> None:
        self.task = task_of(config)

    def score(self, trajectories: Sequence[Trajectory]) -> list[Reward]:
        """A verdict for each trajectory."""
        return [self.verify(trajectory) for trajectory in trajectories]

    def verify(self, trajectory: Trajectory) -> Reward:
        """One verdict."""
        value = self.task.reward(trajectory.prompt, trajectory.tokens.tolist())
        return Reward(trajectory.id, value, component=self.task.rule, outcome="ok")


class Reference:
    """The policy as it was at the start; training is held near it by a KL term."""

    def __init__(self, config: TrainerConfig) -> None:
        self.model = policy_of(config)

    def log_probs(self, trajectories: Sequence[Trajectory]) -> list[NDArray[np.float32]]:
        """Log-probabilities of every response token, one array a trajectory."""
        return grpo.response_log_probs(self.model, trajectories)


class Learner:
    """Trains the policy by GRPO and publishes its weights; `version` counts what it published."""

    def __init__(self, config: TrainerConfig) -> None:
        self.config = config
        self.model = policy_of(config)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.publisher = ObjectStorePublisher()
        self.version = 0

    def train(self, step: int, samples: Sequence[Sample]) -> TrainReport:
        """One learner step: one pass over the samples that carry a signal, in minibatches."""
        signal = [s for s in samples if s.advantage != 0]
        order = torch.randperm(
            len(signal), generator=torch.Generator().manual_seed(self.config.seed + step)
        )
        dropped = [
            Use(s.trajectory.id, "zero-advantage", self._lag(s), len(s.trajectory.tokens))
            for s in samples
            if s.advantage == 0
        ]
        trained: list[Use] = []
        losses: list[float] = []
        divergences: list[float] = []
        for rows in order.chunk(self.config.minibatches) if signal else ():
            minibatch = [signal[row] for row in rows.tolist()]
            uses, loss, divergence = self.update(minibatch)
            trained += uses
            losses.append(loss)
            divergences.append(divergence)
        return TrainReport(
            step=step,
            version=self.version,
            uses=dropped + trained,
            updates=len(losses),
            tokens=sum(use.tokens for use in trained),
            loss=float(np.mean(losses)) if losses else float("nan"),
            kl=float(np.mean(divergences)) if losses else float("nan"),
        )

    def update(self, samples: Sequence[Sample]) -> tuple[list[Use], float, float]:
        """One optimizer update. Returns the uses, the loss and the KL divergence (nats a token)."""
        batch = grpo.Packed.of([s.trajectory for s in samples])
        behaviour = batch.spread([s.trajectory.log_probs for s in samples])
        reference = batch.spread([s.reference for s in samples])
        advantages = torch.tensor([s.advantage for s in samples], dtype=torch.float32)

        log_probs = next_token_log_probs(self.model(batch.tokens), batch.tokens)
        log_ratio = log_probs - behaviour
        objective, clipped = grpo.clipped_objective(log_ratio, advantages, self.config.clip)
        # Only responses: on padding the exponential may overflow, and its gradient then is NaN.
        divergence = grpo.k3(log_probs[batch.mask], reference[batch.mask]).mean()
        loss = -objective[batch.mask].mean() + self.config.kl_coefficient * divergence

        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        self.optimizer.step()

        statistics = grpo.ratio_statistics(log_ratio.detach(), clipped, batch.mask)
        uses = [
            Use(
                trajectory=s.trajectory.id,
                fate="trained",
                lag=self._lag(s),
                tokens=len(s.trajectory.tokens),
                mean_log_ratio=ratio.mean_log_ratio,
                clip_share=ratio.clip_share,
                sum_w=ratio.sum_w,
                sum_w_squared=ratio.sum_w_squared,
            )
            for s, ratio in zip(samples, statistics, strict=True)
        ]
        return uses, loss.item(), divergence.item()

    def publish(self) -> Manifest:
        """Makes the weights available to rollout as the next policy version."""
        manifest = self.publisher.publish(self.version + 1, self.model.state_dict())
        self.version = manifest.version
        return manifest

    def _lag(self, sample: Sample) -> int:
        return self.version - sample.trajectory.first_version
