"""What of a segment has been compacted, by the places of its rows.

Of a job that goes on the rest is read from the segment, and no row is lost or comes twice.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Taken:
    """The rows at the first `slots` places of a segment, but for those `left` (in order): they had
    not ended. The file had so many bytes then."""

    slots: int
    left: tuple[int, ...]
    bytes: int

    def covers(self, first: int, rows: int) -> bool:
        """Whether all of so many places from `first` on have been taken."""
        if first + rows > self.slots:
            return False
        at = bisect_left(self.left, first)
        return at == len(self.left) or self.left[at] >= first + rows

    def has(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these places have been taken."""
        return (places < self.slots) & ~np.isin(places, self.left)
