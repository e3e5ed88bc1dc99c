"""The longest of many: what a barrier waits for, of a lognormal.

Exact, unlike mean * exp(s * sqrt(2 ln n) - s^2 / 2). `s` is the log-deviation of a lognormal and
`c` its coefficient of variation.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_REACH = 12.0  # normal deviates beyond this weigh less than a double can tell
_POINTS = 20_001


def log_deviation(c: float) -> float:
    """`s` of the lognormal whose standard deviation is `c` times its mean."""
    return math.sqrt(math.log1p(c * c))


def variation(s: float) -> float:
    """`c` of the lognormal of log-deviation `s`."""
    return math.sqrt(math.expm1(s * s))


def longest_of_lognormal(n: int, s: float, cap: float = math.inf) -> float:
    """Expected maximum of `n` lognormal values that are cut at `cap`; all in units of the mean of
    the uncut lognormal. Exact: the integral of x d(Phi^n)."""
    z = np.linspace(-_REACH, _REACH + s, _POINTS)
    x = np.minimum(np.exp(s * z - s * s / 2), cap)
    below = _normal_cdf(z) ** n
    # By parts: E[max] = x_0 + the integral of (1 - F^n) dx.
    tail = 1 - below
    return float(x[0] + ((tail[1:] + tail[:-1]) / 2 * np.diff(x)).sum())


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


def _normal_cdf(z: Floats) -> Floats:
    return np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in z.tolist()], np.float64)
