"""A distribution that is kept as counts between fixed bounds, and the bounds of each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

STEP_S = (0.5, 1, 2, 5, 10, 20, 30, 45, 60, 90, 120, 180, 240, 300, 450, 600, 900, 1800, 3600)
TRAJECTORY_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 240, 480, 900, 1800, 3600)
VERDICT_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
SYNC_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)
RESPONSE_TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
LAG_VERSIONS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64)


class Distribution:
    """How many values lie at or below each of `bounds`, which ascend, and their sum. `counts` are
    of the values between two bounds, one more than bounds; by default there is no value yet."""

    def __init__(
        self, bounds: tuple[float, ...], counts: list[int] | None = None, total: float = 0.0
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
