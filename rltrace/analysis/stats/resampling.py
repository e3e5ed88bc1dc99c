"""Draws of steps that resemble their neighbours, and ratios of runs.

A step is long where the one before it was, so the usual interval, which takes steps as independent,
is too narrow. Blocks of neighbouring steps are drawn anew instead: the stationary bootstrap of
Politis and Romano 1994 (blocks of geometric length, on a circle), their length after Politis and
White 2004 with the correction of Patton, Politis and White 2009.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from rltrace.analysis.stats.confidence_interval import UNKNOWN, Interval, factor, t95

Floats = NDArray[np.float64]

_DRAWS = 1000


def mean_block(values: Floats) -> float:
    """The mean length of blocks, in steps: 1 for independent values, at most a third of them."""
    n = len(values)
    x = values - values.mean() if n else values
    if n < 8 or not x @ x > 0:
        return 1.0
    longest = min(n // 2, math.ceil(math.sqrt(n)) + max(5, math.ceil(math.log10(n))))
    covariance = np.array([x[: n - lag] @ x[lag:] for lag in range(longest + 1)]) / n
    # The largest lag before a row of correlations that are no more than chance.
    chance, row = 2 * math.sqrt(math.log10(n) / n), max(5, math.ceil(math.sqrt(math.log10(n))))
    small = np.append(np.abs((covariance / covariance[0])[1:]) < chance, np.ones(row, np.bool_))
    kept = int(np.argmax(sliding_window_view(small, row).all(axis=1)))
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


def drawn_counts(n: int, block: float, seed: int) -> Floats:
    """How often each of `n` steps is in each of the draws, shape (draws, n); each row adds to n."""
    random = np.random.default_rng(seed)
    begins = random.random((_DRAWS, n)) < 1 / block
    begins[:, 0] = True
    starts = random.integers(0, n, (_DRAWS, n))
    place = np.arange(n)
    last = np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    drawn = (np.take_along_axis(starts, last, axis=1) + place - last) % n
    flat = drawn + n * np.arange(_DRAWS)[:, None]
    return np.bincount(flat.ravel(), minlength=_DRAWS * n).reshape(_DRAWS, n).astype(np.float64)


def mean_ratio(ratios: ArrayLike) -> Interval:
    """The geometric mean of the ratios of pairs of runs (Student's t of their logarithms)."""
    logs = np.log(np.asarray(ratios, np.float64))
    n = len(logs)
    if not n:
        return UNKNOWN
    half = t95(n - 1) * float(logs.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return factor(float(logs.mean()), half)
