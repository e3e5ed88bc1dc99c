"""A sample's distribution in a few numbers, with an interval for its mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from rltrace.trace.run import Run

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom, then the normal's.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_Z95 = 1.960

QUANTILES = (0.5, 0.95, 0.99)


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


def t95(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t for that many degrees of freedom (at least 1)."""
    return _T95[freedom - 1] if freedom <= len(_T95) else _Z95


_NOTHING = Spread(0, *[math.nan] * 7)


def spread(values: ArrayLike) -> Spread:
    """The spread of the values that are numbers (NaN: unknown, left out)."""
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    n = len(known)
    if not n:
        return _NOTHING
    quantiles = [float(q) for q in np.quantile(known, QUANTILES)]
    deviation = float(known.std(ddof=1)) if n > 1 else math.nan
    return _spread(n, float(known.mean()), deviation, quantiles, float(known.max()))


def spread_of(run: Run, expression: str, source: str) -> Spread:
    """The spread of a SQL expression over `source` (a table with its conditions), exact quantiles
    taken by DuckDB."""
    n, mean, deviation, quantiles, largest = run.ask(
        f"select count(x), avg(x), stddev_samp(x), quantile_cont(x, {list(QUANTILES)}), max(x) "
        f"from (select ({expression})::double as x from {source})"
    )[0]
    return _spread(n, mean, deviation, quantiles, largest) if n else _NOTHING


def _spread(
    n: int, mean: float, deviation: float | None, quantiles: list[float], largest: float
) -> Spread:
    low = high = math.nan
    if deviation is not None and n > 1:
        half = t95(n - 1) * deviation / math.sqrt(n)
        low, high = mean - half, mean + half
    p50, p95, p99 = quantiles
    return Spread(n, mean, p50, p95, p99, largest, low, high)
