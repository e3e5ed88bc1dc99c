"""What is maximised, token by token: PPO's clip and importance weights.

theta is the policy in training, behaviour the one that sampled, proximal the one that the clip
holds theta near. All log-probs are `[rows, length]`.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
