"""How many samples a worker may have on their way at once, those in their tools with them.

Where a sample keeps its place while its tool works another one begins as soon as one has ended, and
only where the worker had as many on their way as it ever has. Where it gives its place away others
begin as it calls its tool, too, and how many are on their way goes up and down; where nothing
limits them they begin together.

Where samples come in a stream, one after the other and not in batches, some would begin while a
worker has as many as ever, if it had room for more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.columns import alike
from rltrace.analysis.intervals import Ints
from rltrace.analysis.order_statistics import Floats

_AT_ONCE = 0.05  # of a sample's time over the root of the places, in which the next one begins
_RARE = 0.01  # of the time with samples; more at once for less than this is no limit
_FOLLOWED = 0.05  # part of the ends that another sample follows at once; fewer tell nothing
_LEAST = 8
_FULL, _VARIES = 0.8, 0.35  # part of those at which the worker was full: there is a limit; none
_ALONE = 0.5  # part of the samples of a stream that begin at a time of their own
_BEYOND = 0.1  # of those that would have begun with as many on their way, if there were no limit


@dataclass(frozen=True)
class Places:
    """Samples on their way at once at a worker, at the most; infinite where no limit was seen.
    `sure`: whether the run tells."""

    limit: float
    sure: bool


def places_of(worker: Ints, begin_s: Floats, end_s: Floats) -> Places:
    """The places of workers (0, 1, ...) whose samples began and ended at these times."""
    found = [_of_worker(begin_s[mine], end_s[mine]) for _, mine in alike(worker)]
    limits, ends, followed, full = np.array(found).T
    least = max(_LEAST, _FOLLOWED * ends.sum())
    if followed.sum() < least or full.sum() < _VARIES * followed.sum():
        return Places(np.inf, True)
    return Places(float(np.median(limits)), bool(full.sum() >= _FULL * followed.sum()))


def room_of(worker: Ints, begin_s: Floats, end_s: Floats) -> float:
    """Samples of a stream that a worker has room for; infinite where no limit was seen, be it as
    none had as many as ever for long enough, or as samples begin together."""
    found = [_room(np.sort(begin_s[mine]), np.sort(end_s[mine])) for _, mine in alike(worker)]
    limits, alone, expected, beyond = np.array(found).T
    if alone.sum() < _ALONE * len(worker) or expected.sum() < _LEAST:
        return np.inf
    if beyond.sum() > _BEYOND * expected.sum():
        return np.inf
    return float(np.median(limits))


def most_at_once(worker: Ints, begin_s: Floats, end_s: Floats) -> float:
    """The most samples that a worker ever had on their way."""
    return float(max(_levels(begin_s[mine], end_s[mine])[1].max() for _, mine in alike(worker)))


def _room(begins: Floats, ends: Floats) -> tuple[float, float, float, float]:
    """The most that are on their way for more than a rare moment; how many begin at a time of their
    own, and not together, as after an update; how many of these would have begun with as many on
    their way if they did at any time, and how many did."""
    times, level = _levels(begins, ends)
    limit, held_s = _most(times, level)
    soon_s = _soon_s(float(np.mean(ends) - np.mean(begins)), limit)
    firsts = begins[np.diff(begins, prepend=-np.inf) > soon_s]
    before = np.searchsorted(begins, firsts, "left") - np.searchsorted(ends, firsts, "right")
    expected = len(firsts) * held_s / float(times[-1] - times[0])
    return float(limit), float(len(firsts)), expected, float((before >= limit).sum())


def _levels(begins: Floats, ends: Floats) -> tuple[Floats, Ints]:
    """When samples begin and end, and how many are on their way from then on."""
    times = np.concatenate([ends, begins])  # one that ends makes room for one that begins
    order = np.argsort(times, kind="stable")
    change = np.repeat([-1, 1], len(begins))[order]
    return times[order], np.maximum(0, np.cumsum(change))


def _most(times: Floats, level: Ints) -> tuple[int, float]:
    """The most that are on their way for more than a rare moment, and for how long they are."""
    at_level = np.bincount(level[:-1], weights=np.diff(times))
    at_least = np.cumsum(at_level[::-1])[::-1]
    limit = int(np.flatnonzero(at_least >= _RARE * at_level[1:].sum())[-1])
    return limit, float(at_least[limit])


def _soon_s(usual_s: float, limit: int) -> float:
    return _AT_ONCE * usual_s / float(max(1, limit) ** 0.5)


def _of_worker(begin_s: Floats, end_s: Floats) -> tuple[int, int, int, int]:
    """The most that are on their way for more than a rare moment; how many ended, how many of those
    another one followed at once, and at how many of these as many as that had been on their way."""
    begins, ends = np.sort(begin_s), np.sort(end_s)
    times, level = _levels(begins, ends)
    limit, _ = _most(times, level)
    soon_s = _soon_s(float(np.median(end_s - begin_s)), limit)
    next_one = np.searchsorted(begins, ends + soon_s, "right")
    followed = ends[next_one > np.searchsorted(begins, ends, "left")]
    was_full = np.concatenate([[0], np.cumsum(level >= limit)])
    since = np.maximum(0, np.searchsorted(times, followed - soon_s, "left") - 1)
    full = was_full[np.searchsorted(times, followed, "left")] > was_full[since]
    return limit, len(ends), len(followed), int(full.sum())
