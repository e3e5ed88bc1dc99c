"""What travels between the actors: requests, trajectories, verdicts, training samples and uses.

Ids are strings, unique in a run; token ids and log-probabilities are kept as they were sampled, so
nothing is ever tokenized twice and the importance ratio is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Request:
    """One sample to generate: the `group` is the K samples of a prompt, `batch` asked for it."""

    id: str
    group: str
    batch: int
    prompt: tuple[int, ...]


@dataclass(frozen=True)
class Trajectory:
    """A finished sample; `tokens` and `log_probs` cover the response, its end token included."""

    id: str
    group: str
    batch: int
    prompt: tuple[int, ...]
    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]  # by the policy that sampled each token
    first_version: int  # policy version of the first and of the last token
    last_version: int
    finish: str  # "stop": it ended itself; "length": it was cut off


@dataclass(frozen=True)
class Reward:
    """A verdict on a trajectory, 0 to 1."""

    trajectory: str
    value: float
    component: str
    outcome: str  # "ok"


@dataclass(frozen=True)
class Sample:
    """A trajectory ready to be trained on; `reference` float32 is log-probs by the reference."""

    trajectory: Trajectory
    advantage: float
    reference: NDArray[np.float32]


@dataclass(frozen=True)
class Use:
    """What the learner did with a sample, and how far the policy had moved from its sampler.

    With w the ratio of learner to sampler probability of a token: the mean of log w, the share of
    tokens whose ratio the clip cut off, the sum of w and of w². NaN where nothing was trained.
    """

    trajectory: str
    fate: str  # "trained" or "zero-advantage"
    lag: int  # version that trains minus version that generated the first token
    tokens: int  # of the response
    mean_log_ratio: float = float("nan")
    clip_share: float = float("nan")
    sum_w: float = float("nan")
    sum_w_squared: float = float("nan")


@dataclass(frozen=True)
class TrainReport:
    """One learner step: the fate of every sample, and what the optimizer did."""

    step: int
    version: int  # of the weights that the step started from
    uses: list[Use]
    updates: int  # optimizer updates
    tokens: int  # response tokens trained on
    loss: float  # means over minibatches; NaN when no sample had an advantage
    kl: float  # nats a token, from the reference policy
