"""What travels between the actors: requests, trajectories, verdicts, samples, uses.

Tokens and log-probabilities stay as sampled, so the importance ratio is exact (but `--retokenize`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Request:
    """One sample to generate: the `group` is the K samples of a prompt."""

    id: str
    group: str
    prompt: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Trajectory(Request):
    """An ended sample. `tokens` is all that follows the prompt; the policy generated those that
    `generated` marks, a tool the others. It may span policy versions, first to last token."""

    tokens: NDArray[np.int64]
    generated: NDArray[np.bool_]
    log_probs: NDArray[np.float32]  # of the generated tokens, by the policy that sampled each
    first_version: int  # -1: it ended before its first token
    last_version: int
    finish: str  # "stop", "length" (cut off), "abort" or "timeout"
    turns: int
    env_seconds: float  # spent in tool calls
    preemptions: int  # times that new weights made the engine read it anew
    faithful: bool = True  # tokens and log-probs are the engine's own, not made again from text

    @property
    def ended(self) -> bool:
        """Whether it ended of its own or at the length limit, so that it can be judged."""
        return self.finish in ("stop", "length")

    @property
    def response_tokens(self) -> int:
        return len(self.log_probs)


@dataclass(frozen=True)
class Reward:
    """A verdict on a trajectory, 0 to 1; NaN where `outcome` is not "ok"."""

    trajectory: str
    value: float
    component: str
    outcome: str  # "ok", "timeout" or "error"
    start_ns: int  # of the node's monotonic clock
    end_ns: int


@dataclass(eq=False)
class Sample:
    """A trajectory on its way to the learner. Log-probs are of its generated tokens, float32."""

    trajectory: Trajectory
    reward: float = float("nan")
    advantage: float = 0.0
    reference: NDArray[np.float32] | None = None  # by the reference policy
    proximal: NDArray[np.float32] | None = None  # by the policy that the step starts from


@dataclass(frozen=True)
class Use:
    """What the learner did with a sample, and how far the policy had moved. w: the ratio of learner
    to sampler probability of a token, NaN where nothing was trained."""

    trajectory: str
    fate: str  # "trained", or "stale", "failed", "zero-advantage", "filtered"
    version: int  # that trained, or that dropped it
    tokens: int  # generated ones of the response
    in_flight: int = 0  # versions that passed from its first token to its last
    in_queue: int = 0  # and from its last token to this use
    mean_log_ratio: float = float("nan")
    clip_share: float = float("nan")  # of the tokens: those that the objective cut off
    sum_w: float = float("nan")
    sum_w_squared: float = float("nan")

    @property
    def lag(self) -> int:
        """Versions from the one that sampled its first token to the one that used it."""
        return self.in_flight + self.in_queue


def use_of(trajectory: Trajectory, fate: str, version: int, **ratios: float) -> Use:
    """The use of a trajectory at `version`. One without a token has no lag."""
    begun = trajectory.first_version >= 0
    return Use(
        trajectory=trajectory.id,
        fate=fate,
        version=version,
        tokens=trajectory.response_tokens,
        in_flight=trajectory.last_version - trajectory.first_version if begun else 0,
        in_queue=version - trajectory.last_version if begun else 0,
        **ratios,
    )


@dataclass(frozen=True)
class TrainReport:
    uses: list[Use]
    updates: int  # optimizer updates
    loss: float  # means over minibatches; NaN when there was no sample
    kl: float  # nats a token, from the reference policy
