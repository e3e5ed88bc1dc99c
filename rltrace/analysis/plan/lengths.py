"""Response lengths: a lognormal that is cut at the cap, within the samples of a prompt and between
prompts; its moments, its longest, and a small batch that stands for a large one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from rltrace.analysis import order_statistics as orders
from rltrace.analysis.order_statistics import Floats
from rltrace.trace.errors import WrongUsage

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
        if self.s == 0:
            return min(self.uncut, self.cap) ** 2
        if math.isinf(self.cap):
            return self.uncut**2 * math.exp(self.s**2)
        z = _quantile(self.cap, self.uncut, self.s)
        inner = self.uncut**2 * math.exp(self.s**2) * _NORMAL.cdf(z - 2 * self.s)
        return float(inner + self.cap**2 * (1 - _NORMAL.cdf(z)))

    @property
    def cut_share(self) -> float:
        """Part of the responses that reach the cap."""
        if math.isinf(self.cap):
            return 0.0
        if self.s == 0:
            return float(self.uncut >= self.cap)
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


def lengths(mean: float, cap: float, s: float, within_share: float) -> Lengths:
    """Lengths whose mean after the cut is `mean`.

    Errors: `RltraceError` where the cap is not above the mean.
    """
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
