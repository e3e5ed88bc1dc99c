"""The training roles: the learner, and its reference policy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace.sync.transports import PublishedVersion
from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.learning import grpo
from rltrace.trainer.learning.model import next_token_log_probs
from rltrace.trainer.learning.policy import Weights, policy_of
from rltrace.trainer.trajectory import Sample, TrainReport, Trajectory, Use, use_of
from rltrace.trainer.transport import publisher_of

MAX_GRAD_NORM = 1.0
LogProbs = list[NDArray[np.float32]]  # of the generated tokens, an array a trajectory


class Reference:
    """The policy as it was at the start; training is held near it by a KL term."""

    def __init__(self, config: TrainerConfig, index: int, weights: Weights) -> None:
        self.model = policy_of(config, weights)

    def log_probs(self, trajectories: Sequence[Trajectory]) -> LogProbs:
        return grpo.response_log_probs(self.model, trajectories)


class Learner:
    def __init__(self, config: TrainerConfig, index: int, weights: Weights) -> None:
        self.config = config
        self.model = policy_of(config, weights)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.publisher = publisher_of(config)
        self.version = 0

    def old_log_probs(self, trajectories: Sequence[Trajectory]) -> LogProbs:
        """Log-probabilities under the weights that the next step starts from."""
        return grpo.response_log_probs(self.model, trajectories)

    def train(self, step: int, samples: Sequence[Sample]) -> TrainReport:
        shuffle = torch.Generator().manual_seed(self.config.seed + step)
        order = torch.randperm(len(samples), generator=shuffle)
        minibatches = order.chunk(self.config.minibatches) if samples else ()
        updates = [self.update([samples[row] for row in rows.tolist()]) for rows in minibatches]
        return TrainReport(
            uses=[use for uses, _, _ in updates for use in uses],
            updates=len(updates),
            loss=float(np.mean([loss for _, loss, _ in updates])) if updates else float("nan"),
            kl=float(np.mean([kl for _, _, kl in updates])) if updates else float("nan"),
        )

    def update(self, samples: Sequence[Sample]) -> tuple[list[Use], float, float]:
        """One optimizer update. Returns the uses, the loss and the KL divergence (nats a token)."""
        started = time.perf_counter()
        config = self.config
        batch = grpo.Packed.of([s.trajectory for s in samples])
        reference = batch.spread([_known(s.reference) for s in samples])
        behaviour = batch.spread([_behaviour(s) for s in samples])
        proximal = behaviour
        if samples[0].proximal is not None:
            proximal = batch.spread([_known(s.proximal) for s in samples])
        advantages = torch.tensor([s.advantage for s in samples], dtype=torch.float32)

        log_probs = next_token_log_probs(self.model(batch.tokens), batch.tokens)
        given = (log_probs, behaviour, proximal, advantages, config.clip, config.truncate)
        gain, cut = grpo.objective(config.objective, *given)
        # Every token counts the same, as in DAPO (arXiv 2503.14476, eq. 8), not every response.
        # Only responses: on padding the exponential may overflow, and its gradient then is NaN.
        divergence = grpo.k3(log_probs[batch.mask], reference[batch.mask]).mean()
        loss = -gain[batch.mask].mean() + config.kl_coefficient * divergence

        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
        self.optimizer.step()

        ratios = grpo.ratio_statistics((log_probs - behaviour).detach(), cut, batch.mask)
        uses = [
            use_of(sample.trajectory, "trained", self.version, **ratio)
            for sample, ratio in zip(samples, ratios, strict=True)
        ]
        time.sleep(max(0.0, config.update_floor + started - time.perf_counter()))
        return uses, loss.item(), divergence.item()

    def publish(self) -> PublishedVersion:
        manifest = self.publisher.publish(self.version + 1, self.model.state_dict())
        self.version = manifest.version
        return manifest

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any] | None, version: int) -> None:
        """Goes on from a state (`None`: as it is), numbering its next weights `version + 1`."""
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        self.version = version


def _behaviour(sample: Sample) -> NDArray[np.float32]:
    """Of the policy that sampled; where only text came back, the best guess is the one now."""
    trajectory = sample.trajectory
    return trajectory.log_probs if trajectory.faithful else _known(sample.proximal)


def _known(log_probs: NDArray[np.float32] | None) -> NDArray[np.float32]:
    assert log_probs is not None, "the placement computes these before it trains"
    return log_probs
