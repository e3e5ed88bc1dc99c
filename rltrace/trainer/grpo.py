"""GRPO (Shao et al. 2024, arXiv 2402.03300): group-relative advantages, clipped ratios, k3 KL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rltrace.trainer.model import Transformer, next_token_log_probs
from rltrace.trainer.task import END
from rltrace.trainer.trajectory import Trajectory


def group_advantages(rewards: Sequence[float], groups: Sequence[str]) -> NDArray[np.float64]:
    """`(reward - mean of its group) / (standard deviation of its group + 1e-4)`, section 4.1.2.

    The deviation is that of a sample (n - 1). A group of equal rewards gets exactly 0: no signal.
    """
    value = np.asarray(rewards, dtype=np.float64)
    advantages = np.zeros_like(value)
    members: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    for rows in members.values():
        group_rewards = value[rows]
        if np.ptp(group_rewards) > 0:
            spread = group_rewards.std(ddof=1) + 1e-4
            advantages[rows] = (group_rewards - group_rewards.mean()) / spread
    return advantages


@dataclass(frozen=True)
class Packed:
    """Trajectories as one batch, padded on the right.

    `tokens` is `[rows, longest]`. What is said about a token given those before it is
    `[rows, longest - 1]`: column `i` belongs to `tokens[:, i + 1]`. `mask` is true on responses.
    """

    tokens: Tensor
    mask: Tensor

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> Packed:
        """Packs prompts and responses."""
        longest = max(len(t.prompt) + len(t.tokens) for t in trajectories)
        tokens = np.full((len(trajectories), longest), END, dtype=np.int64)
        mask = np.zeros((len(trajectories), longest - 1), dtype=bool)
        for row, trajectory in enumerate(trajectories):
            start = len(trajectory.prompt)
            end = start + len(trajectory.tokens)
            tokens[row, :start] = trajectory.prompt
            tokens[row, start:end] = trajectory.tokens
            mask[row, start - 1 : end - 1] = True
        return cls(torch.from_numpy(tokens), torch.from_numpy(mask))

    def spread(self, responses: Sequence[NDArray[np.float32]]) -> Tensor:
        """Puts one value for each response token in its place; zero elsewhere."""
        placed = torch.zeros(self.mask.shape)
        placed[self.mask] = torch.from_numpy(np.concatenate(responses))
        return placed

    def collect(self, values: Tensor) -> list[NDArray[np.float32]]:
        """The opposite of `spread`."""
        ends = self.mask.sum(dim=1).cumsum(dim=0).numpy()
        return np.split(values[self.mask].numpy(), ends[:-1])


def response_log_probs(
    model: Transformer, trajectories: Sequence[Trajectory]
) -> list[NDArray[np.float32]]:
    """Log-probabilities of the response tokens under `model`, recomputed in one forward pass."""
    batch = Packed.of(trajectories)
    with torch.no_grad():
        return batch.collect(next_token_log_probs(model(batch.tokens), batch.tokens))


def k3(log_probs: Tensor, reference: Tensor) -> Tensor:
    """Per-token estimate of KL(policy || reference), unbiased and never negative (eq. 4)."""
    difference = reference - log_probs
    return difference.exp() - difference - 1


def clipped_objective(log_ratio: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """PPO's objective per token and where the clip cut it off (eq. 3); `advantages` is `[rows]`."""
    ratio = log_ratio.exp()
    advantage = advantages[:, None]
    free = ratio * advantage
    held = ratio.clamp(1 - clip, 1 + clip) * advantage
    return torch.minimum(free, held), held < free


@dataclass(frozen=True)
class RatioStatistics:
    """Of one trajectory's tokens, w being the ratio of learner to sampler probability."""

    mean_log_ratio: float
    clip_share: float
    sum_w: float
    sum_w_squared: float


def ratio_statistics(log_ratio: Tensor, clipped: Tensor, mask: Tensor) -> list[RatioStatistics]:
    """Statistics for each row of `[rows, length]`, over the tokens that `mask` selects."""
    weight = log_ratio.exp() * mask
    count = mask.sum(dim=1)
    columns = (
        (log_ratio * mask).sum(dim=1) / count,
        (clipped & mask).sum(dim=1) / count,
        weight.sum(dim=1),
        weight.square().sum(dim=1),
    )
    return [RatioStatistics(*row) for row in torch.stack(columns, dim=1).tolist()]
