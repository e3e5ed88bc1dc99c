"""The workload that is planned for: its shape, as flags or a workload file state it, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from rltrace.analysis.order_statistics import log_deviation
from rltrace.analysis.plan.constants import PlanConstants
from rltrace.analysis.plan.hardware import Gpu
from rltrace.analysis.plan.lengths import Lengths, lengths
from rltrace.analysis.plan.shapes import Shape
from rltrace.analysis.plan.training import Layout

STALENESS = {"strict": 0.0, "bounded": 2.0, "loose": 8.0}
"""What the words of `--staleness` stand for, in policy versions."""


@dataclass(frozen=True)
class Environment:
    """What a sample meets outside of the model: `calls` to tools of `latency_s` each on average
    (`variation` is their deviation over the mean), of which the part `failures` ends after
    `timeout_s` and is made again; `workers` sandboxes at once (infinite: as many as are needed).
    Then a verdict of `reward_s`, of which `judges` run at once."""

    calls: float = 0.0
    latency_s: float = 0.0
    variation: float = 1.0
    failures: float = 0.0
    timeout_s: float = math.nan
    workers: float = math.inf
    reward_s: float = 0.0
    judges: int = 64

    @property
    def patience_s(self) -> float:
        """After how long a call that fails is given up: as stated, else five mean latencies."""
        return 5 * self.latency_s if math.isnan(self.timeout_s) else self.timeout_s

    @property
    def mean_s(self) -> float:
        """Mean seconds of tools in a trajectory: each failure is a timeout and another call."""
        again = self.failures / (1 - self.failures)
        return self.calls * (self.latency_s + again * self.patience_s)


@dataclass(frozen=True)
class Spec:
    """A workload. Tokens are per sample; `variation` is that of uncut lengths (NaN: the constant);
    `within_share` is the part of the variance of log-lengths within a prompt's samples (NaN
    likewise). `reference`, `logprob`, `critic`: forward passes (a critic is trained, too).
    `lag_bound` is in policy versions. `sync` is a mechanism, "" the best known for the size.
    `assumed` are the inputs that nobody stated, in words."""

    name: str
    model: Shape
    gpu: Gpu
    gpus: int
    prompts: int
    group: int
    mean_tokens: float
    cap_tokens: float
    prompt_tokens: float = 512.0
    variation: float = math.nan
    within_share: float = math.nan
    updates: int = 1
    epochs: float = 1.0
    reference: bool = False
    logprob: bool = True
    critic: bool = False
    lag_bound: float = 0.0
    sync: str = ""
    split: float = math.nan
    slots: float = math.nan
    rollout_ways: int = 0
    layout: Layout = Layout()  # noqa: RUF009 (frozen)
    environment: Environment = Environment()
    usd_per_hour: float = math.nan
    priced: str = ""
    rollout_gpu: Gpu | None = None
    rollout_usd_per_hour: float = math.nan
    stack: str = ""
    multimodal: bool = False
    own_agent: bool = False
    keep_share: float = 1.0
    calibrated: dict[str, float] = field(default_factory=dict, hash=False)
    assumed: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Of a step."""
        return self.prompts * self.group

    @property
    def response_tokens(self) -> float:
        """Of a step."""
        return self.samples * self.mean_tokens

    @property
    def trained_tokens(self) -> float:
        """Of a step, prompts too."""
        return self.samples * (self.mean_tokens + self.prompt_tokens)

    @property
    def agentic(self) -> bool:
        """Whether trajectories call tools."""
        return self.environment.calls > 0

    @cached_property
    def _known_lengths(self) -> dict[tuple[float, float], Lengths]:
        return {}

    def lengths(self, constants: PlanConstants) -> Lengths:
        """Of responses."""
        s = log_deviation(self.variation)
        s = constants["log_deviation"] if math.isnan(s) else s
        within = self.within_share
        within = constants["within_share"] if math.isnan(within) else within
        known = self._known_lengths
        if (s, within) not in known:
            known[s, within] = lengths(self.mean_tokens, self.cap_tokens, s, within)
        return known[s, within]

    def square(self, of: Lengths) -> float:
        """Mean squared length of prompt and response together."""
        return self.prompt_tokens**2 + 2 * self.prompt_tokens * of.mean + of.square
