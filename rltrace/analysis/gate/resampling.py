"""Steps drawn anew with their neighbours: the stationary bootstrap, with an automatic block length.

Politis and Romano 1994 (blocks of geometric length, on a circle); Politis and White 2004 with the
correction of Patton, Politis and White 2009 (the length).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DRAWS = 1000


def mean_block(values: Floats) -> float:
    """The mean length of blocks, in steps, for the mean of such a series: 1 for independent values,
    at most a third of them."""
    n = len(values)
    x = values - values.mean() if n else values
    if n < 8 or not x @ x > 0:
        return 1.0
    longest = min(n // 2, math.ceil(math.sqrt(n)) + max(5, math.ceil(math.log10(n))))
    covariance = np.array([x[: n - lag] @ x[lag:] for lag in range(longest + 1)]) / n
    kept = _last_that_counts(covariance / covariance[0], n)
    if not kept:
        return 1.0
    lags = np.arange(1, min(2 * kept, longest) + 1)
    window = np.minimum(1.0, 2 * (1 - lags / (2 * kept)))  # flat top: 1 up to half, then down to 0
    slope = 2 * float(window @ (lags * covariance[lags]))
    power = float(covariance[0] + 2 * window @ covariance[lags])
    if not power > 0:
        return 1.0
    length = (slope * slope / (power * power)) ** (1 / 3) * n ** (1 / 3)
    return float(min(max(1.0, length), n / 3, 3 * math.sqrt(n)))


def _last_that_counts(correlation: Floats, n: int) -> int:
    """The largest lag before a row of correlations that are no more than chance."""
    chance = 2 * math.sqrt(math.log10(n) / n)
    row = max(5, math.ceil(math.sqrt(math.log10(n))))
    small = np.append(np.abs(correlation[1:]) < chance, np.ones(row, np.bool_))
    for lag in range(len(small) - row + 1):
        if small[lag : lag + row].all():
            return lag
    return 0


def drawn_counts(n: int, block: float, seed: int, draws: int = DRAWS) -> Floats:
    """How often each of `n` steps is in each of the draws, shape (draws, n); each row adds to n."""
    random = np.random.default_rng(seed)
    begins = random.random((draws, n)) < 1 / block
    begins[:, 0] = True
    starts = random.integers(0, n, (draws, n))
    place = np.arange(n)
    last = np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    drawn = (np.take_along_axis(starts, last, axis=1) + place - last) % n
    flat = drawn + n * np.arange(draws)[:, None]
    return np.bincount(flat.ravel(), minlength=draws * n).reshape(draws, n).astype(np.float64)
