"""A sample's distribution in a few numbers, with an interval for its mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rltrace.analysis.stats.confidence_interval import t95
from rltrace.trace.read.run import OpenedRun


@dataclass(frozen=True)
class Spread:
    """`n` values; `low` and `high` are the 95 % interval of the mean (Student's t over the values
    as if independent), NaN below two values. All are NaN where `n` is 0."""

    n: int
    mean: float
    p50: float
    p95: float
    p99: float
    largest: float
    low: float
    high: float

    @property
    def tail_ratio(self) -> float:
        """p95 / p50: 1 for equal values, 3.9 for a lognormal whose deviation equals its mean."""
        return self.p95 / self.p50 if self.p50 else math.nan


_NOTHING = Spread(0, *[math.nan] * 7)


def spread(values: ArrayLike, weights: ArrayLike = 1.0) -> Spread:
    """The spread of the values that are known (not NaN). With `weights` the mean and its interval
    are weighted: of shares by their wholes they are the share of the whole."""
    found = np.asarray(values, np.float64)
    told = ~np.isnan(found)
    known, weight = found[told], np.broadcast_to(weights, found.shape)[told]
    n = len(known)
    if not n:
        return _NOTHING
    mean = float(np.average(known, weights=weight))
    off = (known - mean) * weight / weight.mean()
    half = t95(n - 1) * float(off.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    p50, p95, p99 = np.quantile(known, (0.5, 0.95, 0.99)).tolist()
    return Spread(n, mean, p50, p95, p99, float(known.max()), mean - half, mean + half)


def spread_of(run: OpenedRun, expression: str, source: str) -> Spread:
    """The spread of a SQL expression over `source` (a table with its conditions)."""
    found = run.ask_columns(f"select ({expression})::double as x from {source}")["x"]
    return spread(np.ma.filled(found, math.nan))
