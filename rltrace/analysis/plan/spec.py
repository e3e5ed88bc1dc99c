"""The workload that is planned for: its shape, lengths of responses, tools and verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from rltrace.analysis import order_statistics as orders
from rltrace.analysis.order_statistics import Floats
from rltrace.analysis.plan.constants import PlanConstants
from rltrace.analysis.plan.hardware import Gpu
from rltrace.analysis.plan.shapes import Shape
from rltrace.trace.errors import WrongUsage

STALENESS = {"strict": 0.0, "bounded": 2.0, "loose": 8.0}
"""What the words of `--staleness` stand for, in policy versions."""

_NORMAL = NormalDist()
_HALVINGS = 60
_MOST_OVER_CAP = 1e6
"""A mean of uncut lengths beyond so many caps is the same as all of them being cut."""


@dataclass(frozen=True)
class Lengths:
    """Lengths of responses, tokens. `mean` is that of cut responses; `uncut` that of the lognormal
    behind them, whose log-deviation is `s`; `within_share` is the part of s^2 that lies within the
    samples of a prompt."""

    mean: float
    cap: float
    uncut: float
    s: float
    within_share: float

    @property
    def square(self) -> float:
        """Mean of the squared length: what attention costs."""
        if self.s == 0 or math.isinf(self.cap):
            return self.uncut**2 * math.exp(self.s**2)
        z = _quantile(self.cap, self.uncut, self.s)
        inner = self.uncut**2 * math.exp(self.s**2) * _NORMAL.cdf(z - 2 * self.s)
        return float(inner + self.cap**2 * (1 - _NORMAL.cdf(z)))

    @property
    def cut_share(self) -> float:
        """Part of the responses that reach the cap."""
        if self.s == 0:
            return 0.0
        return 1 - _NORMAL.cdf(_quantile(self.cap, self.uncut, self.s))

    @property
    def context(self) -> float:
        """Tokens of the response that a token on average has before it, as time passes in an
        engine: E[L^2] / 2 E[L]."""
        return self.square / (2 * self.mean)

    def longest(self, n: float) -> float:
        """Expected longest of `n` independent responses, exact."""
        cap = self.cap / self.uncut
        return self.uncut * _longest(max(1, round(n)), round(self.s, 9), round(cap, 9))

    def longest_of_group(self, n: int) -> float:
        """The same of `n` samples of one prompt of the middle kind."""
        s = self.s * math.sqrt(self.within_share)
        middle = self.uncut * math.exp((s * s - self.s * self.s) / 2)
        return middle * _longest(n, round(s, 9), round(self.cap / middle, 9))

    def batch(self, groups: int, size: int, of: float, seed: int = 0) -> Floats:
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
        batch: Floats = np.sort(values)[place].reshape(groups, size)
        return batch


@lru_cache
def lengths(mean: float, cap: float, s: float, within_share: float) -> Lengths:
    """Lengths whose mean after the cut is `mean`. Errors: `RltraceError` where the cap is not above
    the mean."""
    if not 0 < mean < cap:
        raise WrongUsage(
            f"the cap of {cap:,.0f} tokens is not above the mean of {mean:,.0f}: no response could "
            "be longer than the average"
        )
    low, high = mean, mean * _MOST_OVER_CAP
    if math.isinf(cap) or s == 0:
        return Lengths(mean, cap, mean, s, within_share)
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _cut_mean(middle, s, cap) < mean else (low, middle)
    return Lengths(mean, cap, math.sqrt(low * high), s, within_share)


def _cut_mean(uncut: float, s: float, cap: float) -> float:
    z = _quantile(cap, uncut, s)
    return uncut * _NORMAL.cdf(z - s) + cap * (1 - _NORMAL.cdf(z))


def _quantile(x: float, mean: float, s: float) -> float:
    """Where `x` lies among values of a lognormal, in normal deviates."""
    return (math.log(x / mean) + s * s / 2) / s


@lru_cache(maxsize=4096)
def _longest(n: int, s: float, cap: float) -> float:
    return min(cap, orders.longest_of_lognormal(n, s, cap) if s else 1.0)


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
class Layout:
    """Training's parallelism where it is stated: ways of tensor, pipeline and expert parallelism;
    tensor 0: nothing is stated, and the cheaper way is taken."""

    tensor: int = 0
    pipeline: int = 1
    expert: int = 1

    @property
    def ways(self) -> int:
        """Over how many GPUs one copy of the weights is split."""
        return max(1, self.tensor) * self.pipeline * self.expert


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
    layout: Layout = Layout()
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

    def lengths(self, constants: PlanConstants) -> Lengths:
        """Of responses."""
        s, within = orders.log_deviation(self.variation), self.within_share
        return lengths(
            self.mean_tokens,
            self.cap_tokens,
            constants["log_deviation"] if math.isnan(s) else s,
            constants["within_share"] if math.isnan(within) else within,
        )

    def square(self, of: Lengths) -> float:
        """Mean squared length of prompt and response together."""
        return self.prompt_tokens**2 + 2 * self.prompt_tokens * of.mean + of.square
