"""GRPO (Shao et al. 2024, arXiv 2402.03300): advantages, batches, KL, ratios, the objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rltrace.trainer.learning.model import Transformer, next_token_log_probs
from rltrace.trainer.task import END
from rltrace.trainer.trajectory import Trajectory


def group_advantages(rewards: Sequence[float], groups: Sequence[str]) -> NDArray[np.float64]:
    """`(reward - mean of its group) / (standard deviation of its group + 1e-4)`, section 4.1.2, the
    deviation that of a sample (n - 1). A group of equal rewards gets exactly 0: no signal; so does
    a reward that is NaN, which has no part in its group."""
    value = np.asarray(rewards, dtype=np.float64)
    advantages = np.zeros_like(value)
    members: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        if not np.isnan(value[index]):
            members.setdefault(group, []).append(index)
    for rows in members.values():
        group_rewards = value[rows]
        if np.ptp(group_rewards) > 0:
            spread = group_rewards.std(ddof=1) + 1e-4
            advantages[rows] = (group_rewards - group_rewards.mean()) / spread
    return advantages


@dataclass(frozen=True, eq=False)
class Response:
    """What can be trained on: a prompt, what follows it, and which tokens are the policy's."""

    prompt: tuple[int, ...]
    tokens: NDArray[np.int64]
    generated: NDArray[np.bool_]


@dataclass(frozen=True)
class Packed:
    """Responses behind their prompts, padded on the right: `[rows, longest]`. What is said of
    tokens is `[rows, longest - 1]`: column `i` of `tokens[:, i + 1]`; `mask`: it is generated."""

    tokens: Tensor
    mask: Tensor

    @classmethod
    def of(cls, responses: Sequence[Response | Trajectory]) -> Packed:
        longest = max(len(r.prompt) + len(r.tokens) for r in responses)
        tokens = np.full((len(responses), longest), END, dtype=np.int64)
        mask = np.zeros((len(responses), longest - 1), dtype=bool)
        for row, response in enumerate(responses):
            start = len(response.prompt)
            end = start + len(response.tokens)
            tokens[row, :end] = np.concatenate((response.prompt, response.tokens))
            mask[row, start - 1 : end - 1] = response.generated
        return cls(torch.from_numpy(tokens), torch.from_numpy(mask))

    def spread(self, values: Sequence[NDArray[np.float32]]) -> Tensor:
        """Puts one value for each generated token in its place; zero elsewhere."""
        placed = torch.zeros(self.mask.shape)
        placed[self.mask] = torch.from_numpy(np.concatenate(values))
        return placed

    def collect(self, values: Tensor) -> list[NDArray[np.float32]]:
        ends = self.mask.sum(dim=1).cumsum(dim=0).numpy()
        return np.split(values[self.mask].numpy(), ends[:-1])


def response_log_probs(
    model: Transformer, responses: Sequence[Response | Trajectory]
) -> list[NDArray[np.float32]]:
    """Log-probabilities of the generated tokens under `model`, recomputed in one forward pass."""
    batch = Packed.of(responses)
    with torch.no_grad():
        return batch.collect(next_token_log_probs(model(batch.tokens), batch.tokens))


def k3(log_probs: Tensor, reference: Tensor) -> Tensor:
    """KL(policy || reference) by token, never negative (eq. 4); unbiased for own samples."""
    difference = reference - log_probs
    return difference.exp() - difference - 1


def ratio_statistics(log_ratio: Tensor, cut: Tensor, mask: Tensor) -> list[dict[str, float]]:
    """A `Use`'s numbers for each row of `[rows, length]`, over the tokens of `mask`; else zeros."""
    weight = log_ratio.exp() * mask
    count = mask.sum(dim=1).clamp(min=1)
    columns = {
        "mean_log_ratio": (log_ratio * mask).sum(dim=1) / count,
        "clip_share": (cut & mask).sum(dim=1) / count,
        "sum_w": weight.sum(dim=1),
        "sum_w_squared": weight.square().sum(dim=1),
    }
    rows = torch.stack(tuple(columns.values()), dim=1).tolist()
    return [dict(zip(columns, row, strict=True)) for row in rows]


# --- what is maximised, token by token: PPO's clip and importance weights. theta is the policy in
# training, behaviour the one that sampled, proximal the one that the clip holds theta near. All
# log-probs are `[rows, length]`.


def objective(
    name: str,
    log_probs: Tensor,
    behaviour: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    clip: float,
    truncate: float,
) -> tuple[Tensor, Tensor]:
    """The objective of each token and where it was cut (by the clip, or as its importance weight is
    above `truncate`), both `[rows, length]`; `advantages` is `[rows]`.

    - "grpo": clip of theta / proximal (Shao et al. 2024, arXiv 2402.03300, eq. 3)
    - "decoupled": the same, weighted by proximal / behaviour (Hilton et al. 2021, arXiv 2110.00641,
      eq. 2; the weight is truncated as in practice)
    - "tis": log theta, weighted by theta / behaviour (truncated importance sampling: Espeholt et
      al. 2018, arXiv 1802.01561)
    """
    if name == "tis":
        weight, cut = truncated_weight(log_probs - behaviour, truncate)
        return weight * advantages[:, None] * log_probs, cut
    value, cut = clipped_objective(log_probs - proximal, advantages, clip)
    if name == "grpo":
        return value, cut
    if name == "decoupled":
        weight, truncated = truncated_weight(proximal - behaviour, truncate)
        return weight * value, cut | truncated
    raise ValueError(f"there is no objective {name!r}")


def clipped_objective(log_ratio: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """PPO's objective (Schulman et al. 2017, arXiv 1707.06347, eq. 7) and where it was clipped."""
    ratio = log_ratio.exp()
    advantage = advantages[:, None]
    free = ratio * advantage
    held = ratio.clamp(1 - clip, 1 + clip) * advantage
    return torch.minimum(free, held), held < free


def truncated_weight(log_ratio: Tensor, truncate: float) -> tuple[Tensor, Tensor]:
    """min(ratio, truncate), through which no gradient flows, and where it was truncated."""
    ratio = log_ratio.detach().exp()
    return ratio.clamp(max=truncate), ratio > truncate
