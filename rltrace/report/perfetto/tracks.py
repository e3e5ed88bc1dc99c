"""Which track a slice is drawn on.

Perfetto closes the slices of one track like a stack: two that overlap without nesting would
silently get wrong durations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

OPEN = np.iinfo(np.int64).max
"""The end of a slice that never ended."""

_AT_ONCE = 1 << 16  # slices


def pack(start: Ints, end: Ints) -> Ints:
    """A row number for each interval such that intervals of one row do not overlap; rows are few:
    in order of start each takes the row that fell free first. One may begin where another ends."""
    # An interval of no length still takes its instant, or a thousand at one time would share a row.
    until = np.maximum(end, start + 1)
    order = np.argsort(start, kind="stable")
    begin, until = start[order], until[order]
    place = np.arange(len(start))
    if (begin[1:] >= until[:-1]).all():
        return np.zeros(len(start), np.int64)
    by_end = np.argsort(until, kind="stable")
    busy = place + 1 - np.searchsorted(until[by_end], begin, side="right")
    rows = np.maximum.accumulate(busy)  # in use so far
    # Rows fall free in the order of the ends: the n-th that takes one over follows the n-th to end.
    follows = np.flatnonzero(np.diff(rows, prepend=0) == 0)
    first = place.copy()  # on the row of each
    first[follows] = by_end[follows - rows[follows]]
    while (first != (before := first[first])).any():
        first = before
    packed = np.empty(len(start), np.int64)
    packed[order] = rows[first] - 1
    return packed


def nest(lane: Ints, start: Ints, end: Ints, order: Ints | None = None) -> Ints:
    """Where each slice goes, so that those of a track nest: 0 is its lane's own track, k the lane's
    k-th extra one. `order` is that of `outer_first`, where it is known."""
    extra = np.zeros(len(lane), np.int64)
    order = outer_first(start, end, lane) if order is None else order
    order = order[end[order] > start[order]]  # those of no length never cross others
    ordered = lane[order]
    wrong = order[np.isin(ordered, _lanes_with_crossings(ordered, start[order], end[order]))]
    for members in np.split(wrong, np.flatnonzero(np.diff(lane[wrong])) + 1):
        outside = members[_off_the_stack(start[members], end[members])]
        extra[outside] = 1 + pack(start[outside], end[outside])
    return extra


def outer_first(start: Ints, end: Ints, lane: Ints | None = None) -> Ints:
    """The order by lane (where given) and start, of slices that start together the longer first.
    Cheap where the rows are nearly in order, as a process writes them down."""
    order = np.argsort(start, kind="stable") if lane is None else _by_lane(start, lane)
    together = np.append(False, np.diff(start[order]) == 0)
    if lane is not None:
        together[1:] &= np.diff(lane[order]) == 0
    together[:-1] |= together[1:]
    ties = np.flatnonzero(together)
    tied = order[ties]
    keys = (-end[tied], start[tied]) if lane is None else (-end[tied], start[tied], lane[tied])
    order[ties] = tied[np.lexsort(keys)]
    return order


def _by_lane(start: Ints, lane: Ints) -> Ints:
    few = len(lane) and int(lane.min()) >= 0 and int(lane.max()) < 1 << 16
    order = np.argsort(lane.astype(np.uint16) if few else lane, kind="stable")  # 16 bits: radix
    in_order = (np.diff(start[order]) >= 0) | (np.diff(lane[order]) != 0)
    return order if in_order.all() else np.lexsort((start, lane))


def _lanes_with_crossings(lane: Ints, start: Ints, end: Ints) -> Ints:
    """The lanes where a slice ends after one that it began in, of slices in order."""
    if not len(lane):
        return lane
    origin, last = int(start.min()), int(start.max())
    until = np.where(end == OPEN, last, end)
    last = max(last, int(until.max()))
    until[end == OPEN] = last + 1
    begins = np.flatnonzero(np.append(True, lane[1:] != lane[:-1]))
    crossing = []
    at = 0
    while at < len(begins):
        # Lanes one behind the other, as many as fit into 64 bits and into a processor's cache.
        most = at + max(1, OPEN // (last - origin + 2) - 1)
        few = int(np.searchsorted(begins, begins[at] + _AT_ONCE))
        then = max(at + 1, min(most, few, len(begins)))
        part = slice(begins[at], begins[then] if then < len(begins) else len(lane))
        number = np.cumsum(np.append(0, lane[part][1:] != lane[part][:-1]))
        shift = number * (last - origin + 2) - origin
        crossing.append(lane[part][_crossings(start[part] + shift, until[part] + shift)])
        at = then
    return np.unique(np.concatenate(crossing))


def _crossings(start: Ints, end: Ints) -> Ints:
    """Slices that end after one that they began in. Level by level: what begins when all before it
    have ended is on a level, and the rest lies in the slices of that level, or crosses them."""
    wrong = []
    rest, above = np.arange(len(start)), np.zeros(0, np.int64)
    while len(rest):
        on_level = np.ones(len(rest), np.bool_)
        on_level[1:] = start[rest[1:]] >= np.maximum.accumulate(end[rest])[:-1]
        level, rest = rest[on_level], rest[~on_level]
        if len(above):
            holder = above[np.searchsorted(start[above], start[level], side="right") - 1]
            wrong.append(level[end[level] > end[holder]])
        above = level
    return np.concatenate(wrong) if wrong else rest


def _off_the_stack(start: Ints, end: Ints) -> NDArray[Any]:
    """True for the slices of one lane that would cross an earlier one on the stack."""
    order = outer_first(start, end)
    outside = np.zeros(len(start), bool)
    open_until: list[int] = []
    for i, begins, ends in zip(order, start[order].tolist(), end[order].tolist(), strict=True):
        while open_until and open_until[-1] <= begins:
            open_until.pop()
        if open_until and open_until[-1] < ends:
            outside[i] = True
        else:
            open_until.append(ends)
    return outside


# --- distinct values, numbered: sorting a million rows to find ten values would be dear

_DENSE = 4  # values a row: up to this a table of all values in between is cheaper than a sort


def factor(values: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """The distinct values of a column of integers, in order, and the place of each row's value."""
    if not len(values):
        return values, np.zeros(0, np.int64)
    low, high = int(values.min()), int(values.max())
    if high - low < _DENSE * len(values) + 1024:
        moved = np.subtract(values, low, dtype=np.int64)
        there = np.zeros(high - low + 1, np.bool_)
        there[moved] = True
        distinct = np.flatnonzero(there) + low
        return distinct, (np.cumsum(there) - 1)[moved]
    # Rows come in runs of one value, such as the spans of one lane.
    begins = np.append(0, np.flatnonzero(values[1:] != values[:-1]) + 1)
    heads = values[begins]
    distinct = np.unique(heads)
    lengths = np.diff(np.append(begins, len(values)))
    return distinct, np.repeat(np.searchsorted(distinct, heads), lengths)


def number(*keys: NDArray[Any]) -> tuple[Ints, Ints]:
    """The number of every row and the first row of every number: 0, 1, ... for the distinct
    combinations of keys, in sorted order."""
    distinct, dense = factor(keys[0])
    for key in keys[1:]:
        values, code = factor(key)
        distinct, dense = factor(dense * len(values) + code)
    first = np.zeros(len(distinct), np.int64)
    first[dense[::-1]] = np.arange(len(dense))[::-1]
    return dense, first
