"""A distribution that is kept as counts between fixed bounds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from rltrace.trace.texts import packaged_toml


class Distribution:
    """How many values lie at or below each of `bounds`, which ascend, and their sum. `counts` are
    of the values between two bounds, one more than bounds; by default there is no value yet."""

    def __init__(
        self, bounds: Sequence[float], counts: list[int] | None = None, total: float = 0.0
    ) -> None:
        self.bounds = bounds
        self.sum = total
        self._counts = counts or [0] * (len(bounds) + 1)

    def add(self, values: Iterable[float]) -> None:
        """Takes values in, which are numbers."""
        for value in values:
            self._counts[bisect_left(self.bounds, value)] += 1
            self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[int]:
        """For each bound the number of values at or below it; one more, last: of all values."""
        return list(accumulate(self._counts))


def bounds_of(what: str) -> Sequence[float]:
    """The bounds of one of the exporter's distributions."""
    bounds: Sequence[float] = packaged_toml("analysis/live/data/bounds.toml")[what]
    return bounds
