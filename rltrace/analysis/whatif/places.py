"""How many samples a worker may have on their way at once, those in their tools with them.

Where a sample keeps its place while its tool works another one begins as soon as one has ended, and
only where the worker had as many on their way as it ever has. Where it gives its place away others
begin as it calls its tool, too, and how many are on their way goes up and down; where nothing
limits them they begin together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.intervals import Ints
from rltrace.analysis.order_statistics import Floats

_AT_ONCE = 0.05  # of a sample's time over the root of the places, in which the next one begins
_RARE = 0.01  # of the time with samples; more at once for less than this is no limit
_FOLLOWED = 0.05  # part of the ends that another sample follows at once; fewer tell nothing
_LEAST = 8
_FULL, _VARIES = 0.8, 0.35  # part of those at which the worker was full: there is a limit; none


@dataclass(frozen=True)
class Places:
    """Samples on their way at once at a worker, at the most; infinite where no limit was seen.
    `sure`: whether the run tells."""

    limit: float
    sure: bool


def places_of(worker: Ints, begin_s: Floats, end_s: Floats) -> Places:
    """The places of workers (0, 1, ...) whose samples began and ended at these times."""
    found = [_of_worker(begin_s[worker == one], end_s[worker == one]) for one in np.unique(worker)]
    limits, ends, followed, full = np.array(found).T
    least = max(_LEAST, _FOLLOWED * ends.sum())
    if followed.sum() < least or full.sum() < _VARIES * followed.sum():
        return Places(np.inf, True)
    return Places(float(np.median(limits)), bool(full.sum() >= _FULL * followed.sum()))


def _of_worker(begin_s: Floats, end_s: Floats) -> tuple[int, int, int, int]:
    """The most that are on their way for more than a rare moment; how many ended, how many of those
    another one followed at once, and at how many of these as many as that had been on their way."""
    begins, ends = np.sort(begin_s), np.sort(end_s)
    times = np.concatenate([ends, begins])  # one that ends makes room for one that begins
    order = np.argsort(times, kind="stable")
    times = times[order]
    level = np.maximum(0, np.cumsum(np.repeat([-1, 1], len(begins))[order]))
    at_level = np.bincount(level[:-1], weights=np.diff(times))
    at_least = np.cumsum(at_level[::-1])[::-1]
    limit = int(np.flatnonzero(at_least >= _RARE * at_level[1:].sum())[-1])
    soon_s = _AT_ONCE * float(np.median(end_s - begin_s)) / max(1, limit) ** 0.5
    next_one = np.searchsorted(begins, ends + soon_s, "right")
    followed = ends[next_one > np.searchsorted(begins, ends, "left")]
    was_full = np.concatenate([[0], np.cumsum(level >= limit)])
    since = np.maximum(0, np.searchsorted(times, followed - soon_s, "left") - 1)
    full = was_full[np.searchsorted(times, followed, "left")] > was_full[since]
    return limit, len(ends), len(followed), int(full.sum())
