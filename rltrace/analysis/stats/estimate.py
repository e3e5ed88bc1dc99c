"""A figure and between which bounds it is, where that is no interval of chance alone."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
