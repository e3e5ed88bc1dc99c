"""Student's t for any degrees of freedom, by integration (no scipy at run time).

With t = sqrt(f) tan(a) the density is cos(a)^(f - 1), so a tail is a smooth integral of an angle.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

_POINTS = 4001  # odd, for Simpson's rule; the error is below 1e-6 for 1 degree of freedom and up


def tail(t: float, freedom: float) -> float:
    """The probability of a value above `t`; NaN for a NaN."""
    if math.isnan(t):
        return math.nan
    part = _integral(math.atan(abs(t) / math.sqrt(freedom)), freedom)
    upper = 0.5 * part / _integral(0.0, freedom)
    return upper if t >= 0 else 1 - upper


def quantile(probability: float, freedom: float) -> float:
    """The value that is not exceeded with this probability."""
    if probability < 0.5:
        return -_upper(1 - probability, round(freedom, 2))
    return _upper(probability, round(freedom, 2))


@lru_cache(maxsize=1024)
def _upper(probability: float, freedom: float) -> float:
    low, high = 0.0, 1.0
    while tail(high, freedom) > 1 - probability:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        if tail(middle, freedom) > 1 - probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _integral(start: float, freedom: float) -> float:
    """Of cos(a)^(f - 1) from `start` to a right angle, by Simpson's rule."""
    angles = np.linspace(start, math.pi / 2, _POINTS)
    values = np.power(np.maximum(np.cos(angles), 0.0), freedom - 1)
    weights = np.ones(_POINTS)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return float(values @ weights) * (math.pi / 2 - start) / (_POINTS - 1) / 3
