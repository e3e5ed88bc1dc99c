"""The trainer's own books: what each step did, for people, tests and whoever checks a trace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from rltrace.trainer.config import TrainerConfig


@dataclass(frozen=True)
class StepRecord:
    """One learner step. Tokens are response tokens; seconds are the controller's wall-clock."""

    step: int
    version: int  # policy version that the step trained, before its sync
    reward: float  # mean over all samples
    samples: int
    prompt_tokens: int
    tokens_generated: int
    tokens_trained: int
    optimizer_updates: int
    finish: Mapping[str, int]  # samples by the reason why generation ended
    lags: Mapping[int, int]  # trained samples by lag, in policy versions
    drops: Mapping[str, int]  # samples that were not trained on, by reason
    loss: float | None  # None where no sample carried a signal
    kl: float | None  # nats a token
    sync_bytes: int  # read by all rollout workers together
    seconds: float
    stage_seconds: Mapping[str, float]


@dataclass
class Ledger:
    """A whole run."""

    config: TrainerConfig
    parameters: int  # of the policy
    steps: list[StepRecord] = field(default_factory=list)
    seconds: float = 0.0  # from the first step's start to the last step's end

    def reward_rise(self, window: int = 5) -> float:
        """Mean reward of the last `window` steps minus that of the first."""
        rewards = [record.reward for record in self.steps]
        first, last = rewards[:window], rewards[-window:]
        return sum(last) / len(last) - sum(first) / len(first)

    def to_json(self) -> str:
        """The whole run as JSON."""
        return json.dumps(asdict(self), indent=1) + "\n"
