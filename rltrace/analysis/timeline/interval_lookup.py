"""What was going on at a moment, found by binary search; and columns, sorted."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.timeline.intervals import Bools, Floats, Ints
from rltrace.trace.read.run import OpenedRun

_RARE = 0.01  # of the busy time; more at once for less than this is no capacity
_FULL = 0.9

_FEW = 32  # values that are looked for one by one in less time than rows are sorted


class Lane:
    """Intervals `[start, end)` in ns at `places` of two columns, but for empty ones. Answers are
    places in the columns, -1: none."""

    def __init__(self, start: Ints, end: Ints, places: Ints) -> None:
        kept = places[end[places] > start[places]]
        self._by_end = kept[np.argsort(end[kept], kind="stable")]
        self._by_start = kept[np.argsort(start[kept], kind="stable")]
        self._ends, self._starts = end[self._by_end], start[self._by_start]
        self._reach = np.maximum.accumulate(end[self._by_start])
        self._furthest = _last_where(self._reach[1:] > self._reach[:-1])
        self._busy = _last_where(self._starts[1:] > self._reach[:-1])

    @cached_property
    def capacity(self) -> int:
        return usual_most(*levels(self._starts, self._ends))[0]

    def __len__(self) -> int:
        return len(self._ends)

    def ended(self, moment: int) -> int:
        at = bisect_right(self._ends, moment)
        return int(self._by_end[at - 1]) if at else -1

    def open(self, moment: int) -> int:
        """Of those that began before and end after the moment, the one that ends last."""
        at = self._under_way(moment)
        return -1 if at < 0 else int(self._by_start[self._furthest[at]])

    def busy_since(self, moment: int) -> int:
        """Since when there has always been one, ns; the moment itself where there is none then."""
        at = self._under_way(moment)
        return moment if at < 0 else int(self._starts[self._busy[at]])

    def rests_at(self, moments: Ints) -> Bools:
        """At which of the moments nothing is under way that began before."""
        if not len(self):
            return np.ones(len(moments), np.bool_)
        at = np.searchsorted(self._starts, moments) - 1
        return (at < 0) | (self._reach[at] <= moments)

    def _under_way(self, moment: int) -> int:
        at = bisect_left(self._starts, moment) - 1
        return at if at >= 0 and self._reach[at] > moment else -1

    def is_full(self, moment: int) -> bool:
        """Whether as many are under way as ever are, from the moment on."""
        running = bisect_right(self._starts, moment) - bisect_right(self._ends, moment)
        return running >= _FULL * self.capacity


def _last_where(later: Bools) -> NDArray[np.int32]:
    """For each place the last one up to it where this is so; the first is the one at least."""
    places = np.arange(1, len(later) + 1, dtype=np.int32)
    return np.append(np.int32(0), np.maximum.accumulate(np.where(later, places, np.int32(0))))


class Lanes(Mapping[int, Lane]):
    """A lane for each key at `places`, made when it is asked for: few are on a path."""

    def __init__(self, key: Ints, start: Ints, end: Ints, places: Ints) -> None:
        self._start, self._end = start, end
        self._parts = {one: places[part] for one, part in alike(key[places])}
        self._made: dict[int, Lane] = {}

    def __getitem__(self, key: int) -> Lane:
        if key not in self._made:
            self._made[key] = Lane(self._start, self._end, self._parts[key])
        return self._made[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def levels(starts: Ints | Floats, ends: Ints | Floats) -> tuple[Ints | Floats, Ints]:
    """When intervals begin and end, and how many are under way from then on."""
    times = np.concatenate([ends, starts])  # at one moment, first what ends
    order = np.argsort(times, kind="stable")
    change = np.repeat([-1, 1], len(starts))[order]
    return times[order], np.maximum(0, np.cumsum(change))


def usual_most(times: Ints | Floats, level: Ints) -> tuple[int, float]:
    """The most that are under way at once for more than a rare moment, and for how long."""
    if not len(times):
        return 0, 0.0
    at_level = np.bincount(level[:-1], weights=np.diff(times))
    at_least = np.cumsum(at_level[::-1])[::-1]
    most = int(np.flatnonzero(at_least >= _RARE * at_level[1:].sum())[-1])
    return most, float(at_least[most])


TIMED = "start_ns > 0 and end_ns > start_ns"  # else an event, open, or of two clocks


def columns(run: OpenedRun, query: str) -> list[Ints]:
    if run.is_short:
        return [values.astype(np.int64, copy=False) for values in run.ask_columns(query).values()]
    import pyarrow as pa

    table = pa.RecordBatchReader.from_stream(run.sql(query)).read_all()
    found = []
    while table.num_columns:  # a column at a time is in memory twice
        found.append(table.column(0).to_numpy().astype(np.int64, copy=False))
        table = table.remove_column(0)
    return found


def alike(column: Ints) -> list[tuple[int, Ints]]:
    """Each value of the column, from the least, and the places of its rows in their order."""
    if not len(column):
        return []
    least, most = int(column.min()), int(column.max())
    if most - least < 1 << 16:
        digits = np.empty(len(column), np.uint16)
        np.subtract(column, least, out=digits, casting="unsafe")
        values = np.flatnonzero(np.bincount(digits))
        if len(values) <= _FEW:
            return [(least + int(one), np.flatnonzero(digits == one)) for one in values]
        order = np.argsort(digits, kind="stable")  # by its digits: in half the time
    else:
        order = np.argsort(column, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(column[order])) + 1)
    return [(int(column[part[0]]), part) for part in parts]


def numbered(*columns: Ints) -> tuple[Ints, Ints]:
    """`(the number of each row, where each number comes first)`: rows that are alike have one of
    0, 1, ..., in the order of the columns. (`np.unique` with an axis takes seven times as long.)"""
    order = _order(columns)
    new = np.ones(len(order), np.bool_)
    new[1:] = False
    for column in columns:
        new[1:] |= column[order[1:]] != column[order[:-1]]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(new) - 1
    return number, order[new]


def _order(columns: tuple[Ints, ...]) -> Ints:
    """Places in the order of the columns, by one key of all where it fits into 63 bits: that is
    faster."""
    least = [int(column.min(initial=0)) for column in columns]
    sizes = [int(c.max(initial=0)) - low + 1 for c, low in zip(columns, least, strict=True)]
    if math.prod(sizes) >= 1 << 63:
        return np.lexsort(columns[::-1])
    key = np.zeros(len(columns[0]), np.int64)
    for column, low, size in zip(columns, least, sizes, strict=True):
        key = key * size + (column - low)
    return np.argsort(key, kind="stable")
