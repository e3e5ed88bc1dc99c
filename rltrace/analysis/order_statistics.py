"""The longest of many: what a barrier waits for, from measured values or from a lognormal.

The common formula, mean * exp(s * sqrt(2 ln n) - s^2 / 2), replaces the expected maximum of n
normal deviates by its leading term: it overstates the longest of 16 by 1.3 to 1.6 times. What
stands here is exact. `s` is the log-deviation of a lognormal and `c` its coefficient of variation.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_REACH = 12.0  # normal deviates beyond this weigh less than a double can tell
_POINTS = 20_001
_Z95 = 1.6448536269514722


def log_deviation(c: float) -> float:
    """`s` of the lognormal whose standard deviation is `c` times its mean."""
    return math.sqrt(math.log1p(c * c))


def variation(s: float) -> float:
    """`c` of the lognormal of log-deviation `s`."""
    return math.sqrt(math.expm1(s * s))


def fitted_log_deviation(p50: float, p95: float) -> float:
    """`s` of the lognormal with these quantiles: a label for a tail, not a model of it."""
    return math.log(p95 / p50) / _Z95 if p50 > 0 and p95 > 0 else math.nan


def longest_of_lognormal(n: int, s: float, cap: float = math.inf) -> float:
    """Expected maximum of `n` lognormal values that are cut at `cap`; all in units of the mean of
    the uncut lognormal. Exact: the integral of x d(Phi^n)."""
    z = np.linspace(-_REACH, _REACH + s, _POINTS)
    x = np.minimum(np.exp(s * z - s * s / 2), cap)
    below = _normal_cdf(z) ** n
    # By parts: E[max] = x_0 + the integral of (1 - F^n) dx.
    tail = 1 - below
    return float(x[0] + ((tail[1:] + tail[:-1]) / 2 * np.diff(x)).sum())


def longest_of(values: ArrayLike, n: int) -> float:
    """Expected maximum of `n` draws from measured values (with replacement): exact, from the order
    statistics of the empirical distribution. NaN where there is no value."""
    x = np.sort(np.asarray(values, np.float64))
    if not len(x):
        return math.nan
    below = (np.arange(len(x) + 1) / len(x)) ** n
    return float((x * np.diff(below)).sum())


def lognormal_values(n: int, mean: float, s: float, cap: float = math.inf) -> Floats:
    """`n` values that stand for a lognormal: each is the mean of an n-th part of it, so that all
    together have its mean. `mean` is that of the uncut lognormal; what exceeds `cap` is cut."""
    if s == 0:
        return np.full(n, min(mean, cap))
    inner = [NormalDist().inv_cdf(i / n) for i in range(1, n)]
    below = np.array([-_REACH, *inner, _REACH])
    # The partial expectation of a lognormal up to quantile z is mean * Phi(z - s).
    part = np.diff(_normal_cdf(below - s)) * n * mean
    return np.minimum(part, cap)


def makespan(durations: Iterable[float], slots: int) -> float:
    """When the last of some pieces of work ends that are begun in this order on `slots` equal
    places, the first free place each: waves of a batch through an engine, or of verdicts through a
    pool. 0 where there is nothing to do."""
    free, last = [0.0] * max(1, slots), 0.0
    for duration in durations:
        end = free[0] + duration
        heapq.heapreplace(free, end)
        last = max(last, end)
    return last


def split_log_variance(values: ArrayLike, groups: ArrayLike) -> tuple[float, float]:
    """`(between, within)`: log-deviations of the groups' levels and of the values inside a group,
    whose squares add up to that of all values drawn at random (one-way analysis of variance by the
    method of moments, unequal group sizes allowed).

    The longest of a group follows the one within, that of a batch both. NaN where no group has two
    positive values, and between is NaN where there is only one group.
    """
    x = np.asarray(values, np.float64)
    positive = x > 0
    logs = np.log(x[positive])
    if not len(logs):
        return math.nan, math.nan
    _, group = np.unique(np.asarray(groups)[positive], return_inverse=True)
    size = np.bincount(group).astype(np.float64)
    n, count = float(len(logs)), len(size)
    if n <= count:
        return math.nan, math.nan
    level = np.bincount(group, weights=logs) / size
    within = float(((logs - level[group]) ** 2).sum() / (n - count))
    if count < 2:
        return math.nan, math.sqrt(within)
    among = float((size * (level - logs.mean()) ** 2).sum() / (count - 1))
    effective = (n - float((size**2).sum()) / n) / (count - 1)
    return math.sqrt(max(0.0, (among - within) / effective)), math.sqrt(within)


def _normal_cdf(z: Floats) -> Floats:
    return np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in z.tolist()], np.float64)
