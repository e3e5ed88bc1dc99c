"""What values say: mean, quantiles, 95 % intervals, least squares, the longest of many."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rltrace.trace.read.run import OpenedRun

Floats = NDArray[np.float64]

Z95 = 1.959964
"""The two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % interval; NaN where it is unknown."""

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        return not math.isnan(self.value)

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def excludes(self, value: float) -> bool:
        return self.low > value or self.high < value

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high

    def over(self, divisor: float) -> Interval:
        """The figure in units of a positive number that is known well; unknown for others."""
        if not divisor > 0:
            return UNKNOWN
        return Interval(self.value / divisor, self.low / divisor, self.high / divisor)


UNKNOWN = Interval(math.nan, math.nan, math.nan)


def within(value: float, low: float = 0.0, high: float = 1.0) -> float:
    """The value, or the bound that it is beyond; NaN stays NaN."""
    return value if math.isnan(value) else min(high, max(low, value))


def around(value: float, half: float) -> Interval:
    return Interval(value, value - half, value + half)


def factor(log: float, half: float) -> Interval:
    """The interval of a ratio, from its logarithm and half the interval of that."""
    return Interval(*(math.exp(x) for x in (log, log - half, log + half)))


def proportion(part: float, n: float) -> Interval:
    """A share that was found in `n` independent cases (Wilson 1927, score interval)."""
    if not n > 0 or math.isnan(part):
        return UNKNOWN
    z2 = Z95 * Z95
    middle = (part + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(part * (1 - part) / n + z2 / (4 * n * n))
    return Interval(part, within(middle - half), within(middle + half))


@dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its range, which is no interval of chance alone."""

    low: float
    value: float
    high: float

    @property
    def is_no_gain(self) -> bool:
        """Whether a gain is none, to the percent."""
        return round(100 * (self.value - 1)) <= 0

    @property
    def may_lose(self) -> bool:
        """Whether a gain may be a loss, of more than next to nothing."""
        return self.low < 0.98

    def times(self, factor: float) -> Estimate:
        return Estimate(self.low * factor, self.value * factor, self.high * factor)

    def at_most(self, most: float) -> Estimate:
        return Estimate(*(min(one, most) for one in astuple(self)))

    def longer(self, other: Estimate) -> Estimate:
        return Estimate(*map(max, astuple(self), astuple(other)))

    def and_then(self, other: Estimate) -> Estimate:
        """The product of two gains that know nothing of each other: half-widths in quadrature."""
        value = self.value * other.value
        down = math.hypot(math.log(self.value / self.low), math.log(other.value / other.low))
        up = math.hypot(math.log(self.high / self.value), math.log(other.high / other.value))
        return Estimate(value * math.exp(-down), value, value * math.exp(up))


@dataclass(frozen=True)
class LeastSquares:
    """`y = X b + noise`: `b`, the covariance of its error, and the degrees of freedom left."""

    coefficients: Floats
    covariance: Floats
    freedom: int

    def combined(self, weights: ArrayLike) -> Interval:
        """A weighted sum of the coefficients, with its 95 % interval (Student's t)."""
        w = np.asarray(weights, np.float64)
        value = float(w @ self.coefficients)
        half = t95(self.freedom) * math.sqrt(max(0.0, float(w @ self.covariance @ w)))
        return around(value, half)


def fit(x: Floats, y: Floats) -> LeastSquares | None:
    """Ordinary least squares; None: columns of `x` cannot be told apart, or fewer than three
    degrees of freedom are left. The covariance is HC3 (MacKinnon and White 1985): a few rows with
    much weight do not make the intervals too short."""
    rows, columns = x.shape
    if rows - columns < 3 or np.linalg.matrix_rank(x) < columns:
        return None
    inverse = np.linalg.inv(x.T @ x)
    coefficients = inverse @ x.T @ y
    leverage = np.einsum("ij,jk,ik->i", x, inverse, x)
    residual = (y - x @ coefficients) / np.maximum(1e-9, 1 - leverage)
    covariance = inverse @ (x.T * residual**2) @ x @ inverse
    return LeastSquares(coefficients, covariance, rows - columns)


# --- Student's t: with t = sqrt(f) tan(a) the density is cos(a)^(f - 1), so a tail is a smooth
# integral of an angle

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
    return quantile(0.975, freedom)


def _integral(start: float, freedom: float) -> float:
    """Of cos(a)^(f - 1) from `start` to a right angle, by Simpson's rule over the cube root of what
    is left to it, which makes the end smooth. There is nothing beyond a dozen deviations."""
    left = math.pi / 2 - start
    least = max(0.0, left - 12 / math.sqrt(freedom))
    roots, width = np.linspace(least ** (1 / 3), left ** (1 / 3), _POINTS, retstep=True)
    values = 3 * roots**2 * np.power(np.sin(roots**3), freedom - 1)
    weights = np.ones(_POINTS)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return float(values @ weights) * float(width) / 3


# --- lognormal values: `s` is their log-deviation, `c` their coefficient of variation

_REACH = 12.0  # normal deviates beyond this weigh less than a double can tell
_DEVIATES = 20_001


def log_deviation(c: float) -> float:
    return math.sqrt(math.log1p(c * c))


def variation(s: float) -> float:
    return math.sqrt(math.expm1(s * s))


def longest_of_lognormal(n: int, s: float, cap: float = math.inf) -> float:
    """Expected maximum of `n` lognormal values that are cut at `cap`, in units of the mean of the
    uncut lognormal. Exact, unlike exp(s * sqrt(2 ln n) - s^2 / 2): the integral of x d(Phi^n)."""
    z = np.linspace(-_REACH, _REACH + s, _DEVIATES)
    x = np.minimum(np.exp(s * z - s * s / 2), cap)
    below = _normal_cdf(z) ** n
    # By parts: E[max] = x_0 + the integral of (1 - F^n) dx.
    tail = 1 - below
    return float(x[0] + ((tail[1:] + tail[:-1]) / 2 * np.diff(x)).sum())


def lognormal_values(n: int, mean: float, s: float, cap: float = math.inf) -> Floats:
    """`n` values that stand for a lognormal of this mean, each the mean of an n-th part of it."""
    if s == 0:
        return np.full(n, min(mean, cap))
    inner = [NormalDist().inv_cdf(i / n) for i in range(1, n)]
    below = np.array([-_REACH, *inner, _REACH])
    # The partial expectation of a lognormal up to quantile z is mean * Phi(z - s).
    part = np.diff(_normal_cdf(below - s)) * n * mean
    return np.minimum(part, cap)


def makespan(durations: Iterable[float], slots: int) -> float:
    """When the last of some work ends, begun in this order on the first free of `slots` places."""
    free, last = [0.0] * max(1, slots), 0.0
    for duration in durations:
        end = free[0] + duration
        heapq.heapreplace(free, end)
        last = max(last, end)
    return last


def _normal_cdf(z: Floats) -> Floats:
    return np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in z.tolist()], np.float64)


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
