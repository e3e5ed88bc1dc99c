"""Student's t for any degrees of freedom, by integration.

With t = sqrt(f) tan(a) the density is cos(a)^(f - 1), so a tail is a smooth integral of an angle.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

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
