"""A figure and between which bounds it is, where that is no interval of chance alone."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its range."""

    low: float
    middle: float
    high: float

    @property
    def is_no_gain(self) -> bool:
        """Whether a gain is none, to the percent."""
        return round(100 * (self.middle - 1)) <= 0

    def times(self, factor: float) -> Estimate:
        """The same in another unit; the factor is positive."""
        return Estimate(self.low * factor, self.middle * factor, self.high * factor)

    def at_most(self, most: float) -> Estimate:
        """The same, where more cannot be."""
        return Estimate(min(self.low, most), min(self.middle, most), min(self.high, most))

    def longer(self, other: Estimate) -> Estimate:
        """The longer of two, at each place."""
        return Estimate(
            max(self.low, other.low), max(self.middle, other.middle), max(self.high, other.high)
        )

    def and_then(self, other: Estimate) -> Estimate:
        """The product of two gains that know nothing of each other: half-widths in quadrature."""
        middle = self.middle * other.middle
        down = math.hypot(math.log(self.middle / self.low), math.log(other.middle / other.low))
        up = math.hypot(math.log(self.high / self.middle), math.log(other.high / other.middle))
        return Estimate(middle * math.exp(-down), middle, middle * math.exp(up))
