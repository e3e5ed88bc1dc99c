"""Intervals of means over steps that resemble their neighbours.

A step is long where the one before it was (the same prompts, a warm cache, a busy host), so the
usual interval, which takes steps as independent, is too narrow. Blocks of neighbouring steps
are drawn instead (circular block bootstrap, Politis and Romano 1992), as long as the steps' own
correlation asks for (Carlstein 1986, for an autoregression of order 1). A bootstrap of few steps is
too narrow as well, so its standard error is used with Student's t for the steps that would say as
much were they independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rltrace.analysis.spread import t95

Floats = NDArray[np.float64]

DRAWS = 2000


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval; NaN where it is unknown (bounds too, below two steps)."""

    value: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        """Whether the interval is known and lies on one side of `value`."""
        return self.low > value or self.high < value


UNKNOWN = Interval(math.nan, math.nan, math.nan)


def correlation(values: ArrayLike) -> float:
    """How much a value resembles the next one: the autocorrelation at lag 1, up to 0.95; 0 where it
    is no more than what independent values show by chance (1.96 / sqrt(n), Bartlett 1946)."""
    x = np.asarray(values, np.float64)
    x = x - x.mean() if len(x) else x
    power = float(x @ x)
    if len(x) < 4 or not power > 0:
        return 0.0
    found = float(x[1:] @ x[:-1]) / power
    return min(0.95, found) if found > 1.96 / math.sqrt(len(x)) else 0.0


def block_length(values: ArrayLike) -> int:
    """Steps in a block: (2 r / (1 - r²))^(2/3) n^(1/3) for an autocorrelation r, at least 1."""
    x = np.asarray(values, np.float64)
    r = correlation(x)
    length = math.pow(2 * r / (1 - r * r), 2 / 3) * math.pow(len(x), 1 / 3)
    return max(1, min(len(x) // 2, round(length)))


def resampled_means(columns: ArrayLike, block: int, seed: int = 0, draws: int = DRAWS) -> Floats:
    """Means of the columns (steps, figures) of resampled steps, shape (draws, figures). All figures
    of a step are drawn together, so what adds up in each step adds up in each draw."""
    data = np.atleast_2d(np.asarray(columns, np.float64).T).T
    n = len(data)
    starts = np.random.default_rng(seed).integers(0, n, (draws, math.ceil(n / block)))
    places = (starts[:, :, None] + np.arange(block)).reshape(draws, -1)[:, :n] % n
    means: Floats = data[places].mean(axis=1)
    return means


def _alike(values: Floats) -> float:
    """The number of independent steps that would tell as much."""
    r = correlation(values)
    return len(values) * (1 - r) / (1 + r)


def _half_width(first: Floats, second: Floats, deviations: tuple[float, float]) -> float:
    """Half the interval of a difference of two means with these standard errors (Welch's t)."""
    parts = []
    for values, deviation in zip((first, second), deviations, strict=True):
        n = len(values)
        if n < 2:
            return math.nan
        parts.append((deviation * math.sqrt(n / (n - 1)), max(1.0, _alike(values) - 1)))
    variance = sum(d * d for d, _ in parts)
    if not variance > 0:
        return 0.0
    freedom = variance**2 / sum(d**4 / f for d, f in parts)
    return t95(max(1, int(freedom))) * math.sqrt(variance)


def differences(
    first: ArrayLike, second: ArrayLike, by_first: ArrayLike, by_second: ArrayLike
) -> list[Interval]:
    """Mean of `second` minus mean of `first` for each column (steps, figures). Blocks are as long
    as `by_first` and `by_second` (the lengths of the steps) ask for."""
    a, b = (np.atleast_2d(np.asarray(x, np.float64).T).T for x in (first, second))
    if not len(a) or not len(b):
        return [UNKNOWN] * a.shape[1]
    draws_a = resampled_means(a, block_length(by_first), seed=1)
    draws_b = resampled_means(b, block_length(by_second), seed=2)
    found = []
    for column in range(a.shape[1]):
        value = float(b[:, column].mean() - a[:, column].mean())
        deviations = (float(draws_a[:, column].std()), float(draws_b[:, column].std()))
        half = _half_width(a[:, column], b[:, column], deviations)
        found.append(Interval(value, value - half, value + half))
    return found


def ratio(first: ArrayLike, second: ArrayLike) -> Interval:
    """Mean of `second` over mean of `first`, positive figures of steps."""
    a, b = (np.asarray(x, np.float64) for x in (first, second))
    if not len(a) or not len(b) or not a.mean() > 0 or not b.mean() > 0:
        return UNKNOWN
    logs = [
        float(np.log(resampled_means(x, block_length(x), seed)).std())
        for seed, x in enumerate((a, b))
    ]
    half = _half_width(a, b, (logs[0], logs[1]))
    value = float(b.mean() / a.mean())
    return Interval(value, value * math.exp(-half), value * math.exp(half))


def mean_ratio(ratios: ArrayLike) -> Interval:
    """The geometric mean of the ratios of pairs of runs (Student's t of their logarithms)."""
    logs = np.log(np.asarray(ratios, np.float64))
    n = len(logs)
    if not n:
        return UNKNOWN
    middle = float(logs.mean())
    half = t95(n - 1) * float(logs.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def rate_ratio(first: tuple[ArrayLike, ArrayLike], second: tuple[ArrayLike, ArrayLike]) -> Interval:
    """(sum over sum) of `second` over that of `first`; each is an amount and what it is a rate of,
    by step. Amount and divisor of a step are drawn together."""
    logs, errors, rates = [], [], []
    for seed, (amount, per) in enumerate((first, second)):
        a, p = np.asarray(amount, np.float64), np.asarray(per, np.float64)
        if not len(a) or not a.sum() > 0 or not p.sum() > 0:
            return UNKNOWN
        with np.errstate(all="ignore"):
            steps = np.where(p > 0, a / p, 0.0)
            means = resampled_means(np.stack([a, p], axis=1), block_length(steps), seed)
            log = np.log(means[:, 0] / means[:, 1])
        logs.append(math.log(a.sum() / p.sum()))
        errors.append(float(log[np.isfinite(log)].std()))
        rates.append(steps)
    half = _half_width(rates[0], rates[1], (errors[0], errors[1]))
    value = logs[1] - logs[0]
    return Interval(math.exp(value), math.exp(value - half), math.exp(value + half))
