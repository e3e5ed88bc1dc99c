"""A figure with its 95 % interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rltrace.analysis.stats.distributions import Z95, t95


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
        """Whether the interval is known and lies on one side of `value`."""
        return self.low > value or self.high < value

    def contains(self, value: float) -> bool:
        """Whether the interval is known and does."""
        return self.low <= value <= self.high

    def over(self, divisor: float) -> Interval:
        """The figure in units of a positive number that is known well; unknown for others."""
        if not divisor > 0:
            return UNKNOWN
        return Interval(self.value / divisor, self.low / divisor, self.high / divisor)


UNKNOWN = Interval(math.nan, math.nan, math.nan)


def within(value: float, low: float = 0.0, high: float = 1.0) -> float:
    """The value, or the bound that it is beyond; NaN stays NaN, which `min` and `max` may hide."""
    return value if math.isnan(value) else min(high, max(low, value))


def around(value: float, half: float) -> Interval:
    """The interval of an error that is as likely up as down."""
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


# --- A figure and between which bounds it is, where that is no interval of chance alone.


@dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its range."""

    low: float
    value: float
    high: float

    @property
    def is_no_gain(self) -> bool:
        """Whether a gain is none, to the percent."""
        return round(100 * (self.value - 1)) <= 0

    def times(self, factor: float) -> Estimate:
        """The same in another unit; the factor is positive."""
        return Estimate(self.low * factor, self.value * factor, self.high * factor)

    def at_most(self, most: float) -> Estimate:
        """The same, where more cannot be."""
        return Estimate(min(self.low, most), min(self.value, most), min(self.high, most))

    def longer(self, other: Estimate) -> Estimate:
        """The longer of two, at each place."""
        return Estimate(
            max(self.low, other.low), max(self.value, other.value), max(self.high, other.high)
        )

    def and_then(self, other: Estimate) -> Estimate:
        """The product of two gains that know nothing of each other: half-widths in quadrature."""
        value = self.value * other.value
        down = math.hypot(math.log(self.value / self.low), math.log(other.value / other.low))
        up = math.hypot(math.log(self.high / self.value), math.log(other.high / other.value))
        return Estimate(value * math.exp(-down), value, value * math.exp(up))


Floats = NDArray[np.float64]


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
    """Ordinary least squares. None where the columns of `x` cannot be told apart or fewer than
    three degrees of freedom are left.

    The covariance is HC3 (MacKinnon and White 1985): each residual is divided by what its row
    leaves of it, so a few rows with much weight do not make the intervals too short.
    """
    rows, columns = x.shape
    if rows - columns < 3 or np.linalg.matrix_rank(x) < columns:
        return None
    inverse = np.linalg.inv(x.T @ x)
    coefficients = inverse @ x.T @ y
    leverage = np.einsum("ij,jk,ik->i", x, inverse, x)
    residual = (y - x @ coefficients) / np.maximum(1e-9, 1 - leverage)
    covariance = inverse @ (x.T * residual**2) @ x @ inverse
    return LeastSquares(coefficients, covariance, rows - columns)
