"""Student's t for any degrees of freedom, by integration.

With t = sqrt(f) tan(a) the density is cos(a)^(f - 1), so a tail is a smooth integral of an angle.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959964
"""The two-sided 95 % quantile of the normal distribution."""

_POINTS = 2001  # odd, for Simpson's rule
_EXACT = 1e-12


def tail(t: float, freedom: float) -> float:
    """The probability of a value above `t`; NaN for a NaN."""
    if math.isnan(t):
        return math.nan
    part = _integral(math.atan(abs(t) / math.sqrt(freedom)), freedom)
    upper = 0.5 * part / _integral(0.0, freedom)
    return upper if t >= 0 else 1 - upper


@lru_cache(maxsize=1024)
def quantile(probability: float, freedom: float) -> float:
    """The value that is not exceeded with this probability, by bisection of its angle."""
    if probability < 0.5:
        return -quantile(1 - probability, freedom)
    low, high = 0.0, math.pi / 2
    beyond = 2 * (1 - probability) * _integral(0.0, freedom)
    while high - low > _EXACT:
        angle = (low + high) / 2
        low, high = (angle, high) if _integral(angle, freedom) > beyond else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def t95(freedom: float) -> float:
    """The two-sided 95 % quantile."""
    return quantile(0.975, freedom)


def _integral(start: float, freedom: float) -> float:
    """Of cos(a)^(f - 1) from `start` to a right angle, by Simpson's rule over the cube root of what
    is left to it, which makes the end smooth. There is nothing beyond a dozen deviations."""
    left = math.pi / 2 - start
    roots, width = np.linspace(
        max(0.0, left - 12 / math.sqrt(freedom)) ** (1 / 3), left ** (1 / 3), _POINTS, retstep=True
    )
    values = 3 * roots**2 * np.power(np.sin(roots**3), freedom - 1)
    weights = np.ones(_POINTS)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return float(values @ weights) * float(width) / 3


# Exact, unlike mean * exp(s * sqrt(2 ln n) - s^2 / 2). `s` is the log-deviation of a lognormal and
# `c` its coefficient of variation.

Floats = NDArray[np.float64]

_REACH = 12.0  # normal deviates beyond this weigh less than a double can tell
_order_statistics_POINTS = 20_001


def log_deviation(c: float) -> float:
    """`s` of the lognormal whose standard deviation is `c` times its mean."""
    return math.sqrt(math.log1p(c * c))


def variation(s: float) -> float:
    """`c` of the lognormal of log-deviation `s`."""
    return math.sqrt(math.expm1(s * s))


def longest_of_lognormal(n: int, s: float, cap: float = math.inf) -> float:
    """Expected maximum of `n` lognormal values that are cut at `cap`; all in units of the mean of
    the uncut lognormal. Exact: the integral of x d(Phi^n)."""
    z = np.linspace(-_REACH, _REACH + s, _order_statistics_POINTS)
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
