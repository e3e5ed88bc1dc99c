"""What one training run does: a frozen record that is checked where it is made."""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.trainer.task import RULES


class TrainerError(Exception):
    """A wrong setting or a missing requirement; the message is one sentence for the user."""


@dataclass(frozen=True)
class TrainerConfig:
    """Settings of a run. Errors: `TrainerError` for a value that cannot work."""

    steps: int = 100
    seed: int = 0
    placement: str = "colocated"

    # the task: strings of `shortest` to `longest` out of `symbols` different symbols
    task: str = "sort"
    symbols: int = 6
    shortest: int = 2
    longest: int = 6
    max_response: int = 16  # tokens; a response that has not ended by then is cut off

    # a step's batch
    prompts: int = 12  # prompts, hence groups, in a step
    samples: int = 12  # samples of each prompt (the group size K)
    max_running: int = 8  # sequences that one rollout worker decodes at once

    # the policy
    width: int = 128
    layers: int = 3
    heads: int = 4

    # GRPO
    learning_rate: float = 1e-3
    minibatches: int = 4  # optimizer updates in a step
    clip: float = 0.2  # PPO: the ratio is held within 1 - clip .. 1 + clip
    kl_coefficient: float = 0.01  # weight of the KL divergence from the reference policy
    max_grad_norm: float = 1.0

    # processes
    rollout_workers: int = 2
    reward_workers: int = 1
    ray_address: str = "local"  # "local" starts a cluster of its own

    def __post_init__(self) -> None:
        for name in (
            "steps", "shortest", "max_response", "prompts", "max_running", "width", "layers",
            "heads", "minibatches", "rollout_workers", "reward_workers",
        ):  # fmt: skip
            _require(getattr(self, name) >= 1, f"{name} must be at least 1", getattr(self, name))
        _require(self.task in RULES, f"task must be one of {', '.join(RULES)}", self.task)
        _require(2 <= self.symbols <= 26, "symbols must be 2 to 26", self.symbols)
        _require(self.samples >= 2, "samples must be at least 2: GRPO compares them", self.samples)
        _require(
            self.longest >= self.shortest, f"longest must be at least {self.shortest}", self.longest
        )
        _require(
            self.max_response > self.longest,
            f"max_response must exceed longest ({self.longest}), or no answer can end",
            self.max_response,
        )
        _require(
            self.width % self.heads == 0, f"width must be a multiple of {self.heads}", self.width
        )
        _require(self.learning_rate >= 0, "learning_rate must not be negative", self.learning_rate)
        _require(0 < self.clip < 1, "clip must lie between 0 and 1", self.clip)
        _require(
            self.kl_coefficient >= 0, "kl_coefficient must not be negative", self.kl_coefficient
        )

    @property
    def context(self) -> int:
        """Longest sequence in tokens: a prompt with its question mark, and a full response."""
        return self.longest + 1 + self.max_response


def _require(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise TrainerError(f"{rule}, not {value!r}")
