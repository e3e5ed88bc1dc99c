"""The workload of a plan: shape, lengths of responses, tools and verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from rltrace.analysis.plan.data_sheets import Gpu, Shape
from rltrace.analysis.stats import confidence_interval as orders
from rltrace.analysis.whatif.workload import PlanConstants

STALENESS = {"strict": 0.0, "bounded": 2.0, "loose": 8.0}
"""What the words of `--staleness` stand for, in policy versions."""

_NORMAL = NormalDist()
_HALVINGS = 60
_MOST_OVER_CAP = 1e6
"""A mean of uncut lengths beyond so many caps is the same as all of them being cut."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of responses. `mean` is that of cut responses, `uncut` that of the lognormal behind
    them, whose log-deviation is `s`; `within_share` is the part of s^2 within prompts."""

    mean: float
    cap: float
    uncut: float
    s: float
    within_share: float

    @property
    def square(self) -> float:
        """Mean of the squared length: what attention costs."""
        z = _quantile(self.cap, self.uncut, self.s)
        inner = self.uncut**2 * math.exp(self.s**2) * _NORMAL.cdf(z - 2 * self.s)
        return float(inner + self.cap**2 * (1 - _NORMAL.cdf(z)))

    @property
    def cut_share(self) -> float:
        return 1 - _NORMAL.cdf(_quantile(self.cap, self.uncut, self.s))

    @property
    def context(self) -> float:
        """Response tokens that a token has before it on average: E[L^2] / 2 E[L]."""
        return self.square / (2 * self.mean)

    def longest(self, n: float) -> float:
        """Expected longest of `n` independent responses, exact."""
        cap = self.cap / self.uncut
        return self.uncut * _longest(max(1, round(n)), round(self.s, 9), round(cap, 9))

    def batch(self, groups: int, size: int, of: float, seed: int = 0) -> orders.Floats:
        """`groups` x `size` lengths, a row for each group, that stand for a batch of `of` samples:
        with its mean and its longest, groups alike inside as `within_share` says."""
        n = groups * size
        values = np.sort(orders.lognormal_values(n, self.uncut, self.s, self.cap))
        if of > n > 1:
            rest = max(1.0, self.mean * n - self.longest(of))
            values[:-1] *= rest / max(1.0, float(values[:-1].sum()))
            values[-1] = self.longest(of)
        draw = np.random.default_rng(seed)
        level = draw.standard_normal((groups, 1)) * math.sqrt(1 - self.within_share)
        own = draw.standard_normal((groups, size)) * math.sqrt(self.within_share)
        place = (level + own).ravel().argsort().argsort()
        batch: orders.Floats = np.sort(values)[place].reshape(groups, size)
        return batch


@lru_cache
def lengths(mean: float, cap: float, s: float, within_share: float) -> Lengths:
    if s == 0:
        return Lengths(mean, cap, mean, s, within_share)
    low, high = mean, mean * _MOST_OVER_CAP
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        z = _quantile(cap, middle, s)
        cut_mean = middle * _NORMAL.cdf(z - s) + cap * (1 - _NORMAL.cdf(z))
        low, high = (middle, high) if cut_mean < mean else (low, middle)
    return Lengths(mean, cap, math.sqrt(low * high), s, within_share)


def _quantile(x: float, mean: float, s: float) -> float:
    """Where `x` lies among values of a lognormal, in normal deviates."""
    return (math.log(x / mean) + s * s / 2) / s if s else math.inf


@lru_cache(maxsize=4096)
def _longest(n: int, s: float, cap: float) -> float:
    return min(cap, orders.longest_of_lognormal(n, s, cap) if s else 1.0)


@dataclass(frozen=True)
class EnvironmentModel:
    """What a sample meets outside of the model: `calls` to tools of `latency_s` each on average
    (`variation` is their deviation over the mean), `workers` at once (infinite: as many as are
    needed). Then a verdict of `reward_s`, of which `judges` run at once."""

    calls: float = 0.0
    latency_s: float = 0.0
    variation: float = 1.0
    workers: float = math.inf
    reward_s: float = 0.0
    judges: int = 64

    @property
    def mean_s(self) -> float:
        return self.calls * self.latency_s

    @property
    def _deviation(self) -> float:
        """Log-deviation of a trajectory's seconds: a sum of calls varies less than one."""
        return orders.log_deviation(self.variation / math.sqrt(max(1.0, self.calls)))

    def longest_s(self, n: float) -> float:
        """Expected longest of so many trajectories."""
        return self.mean_s * _longest(max(1, round(n)), round(self._deviation, 9), math.inf)

    def seconds(self, n: int, seed: int) -> orders.Floats:
        """Those of `n` trajectories that stand for all."""
        values = orders.lognormal_values(n, self.mean_s, self._deviation)
        return np.random.default_rng(seed).permutation(values)


@dataclass(frozen=True)
class Spec:
    """A workload. Tokens are per sample; `variation` is that of uncut lengths (NaN: the constant).
    `reference`, `logprob`, `critic`: forward passes (a critic is trained, too). `lag_bound` is in
    policy versions, `sync` a mechanism. `tensor`, `pipeline` and `expert` are ways of training's
    parallelism (tensor 0: nothing is stated, and the cheaper way is taken). `assumed` are the
    inputs that nobody stated, in words."""

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
    updates: int = 1
    reference: bool = False
    logprob: bool = True
    critic: bool = False
    lag_bound: float = 0.0
    sync: str = "bucketed"
    split: float = math.nan
    slots: float = math.nan
    rollout_ways: int = 0
    tensor: int = 0
    pipeline: int = 1
    expert: int = 1
    environment: EnvironmentModel = EnvironmentModel()
    usd_per_hour: float = math.nan
    priced: str = ""
    stack: str = ""
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
        return self.environment.calls > 0

    def lengths(self, constants: PlanConstants) -> Lengths:
        s = orders.log_deviation(self.variation)
        if math.isnan(s):
            s = constants["log_deviation"]
        return lengths(self.mean_tokens, self.cap_tokens, s, constants["within_share"])

    def square(self, of: Lengths) -> float:
        """Mean squared length of prompt and response together."""
        return self.prompt_tokens**2 + 2 * self.prompt_tokens * of.mean + of.square
