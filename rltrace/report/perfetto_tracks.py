"""Which track a slice is drawn on: Perfetto closes the slices of one track like a stack.

Two slices that overlap without nesting would silently get wrong durations on one track. So slices
are laid out first: `nest` finds those that cannot stay on the track of their lane, `pack` puts
intervals on as few tracks as hold them without overlap.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

OPEN = np.iinfo(np.int64).max
"""The end of a slice that never ended."""


def pack(start: Ints, end: Ints) -> Ints:
    """A row number for each interval such that intervals of one row do not overlap; rows are few.

    Takes them in order of start and reuses the row that fell free first. An interval may begin
    where another ends.
    """
    order = np.lexsort((end, start))
    rows = np.zeros(len(start), np.int64)
    busy: list[tuple[int, int]] = []
    # An interval of no length still takes its instant, or a thousand at one time would share a row.
    until = np.maximum(end, start + 1)
    for i, begins, ends in zip(order, start[order].tolist(), until[order].tolist(), strict=True):
        row = len(busy)
        if busy and busy[0][0] <= begins:
            row = heapq.heappop(busy)[1]
        heapq.heappush(busy, (ends, row))
        rows[i] = row
    return rows


def nest(lane: Ints, start: Ints, end: Ints) -> Ints:
    """Where each slice goes: 0 stays on its lane's own track, k is the lane's k-th extra track.

    On each track the slices nest properly. Slices of no length never cross others and stay.
    """
    extra = np.zeros(len(lane), np.int64)
    lasting = np.flatnonzero(end > start)
    for crossing in _lanes_with_crossings(lane[lasting], start[lasting], end[lasting]):
        members = lasting[lane[lasting] == crossing]
        outside = members[_off_the_stack(start[members], end[members])]
        extra[outside] = 1 + pack(start[outside], end[outside])
    return extra


def _lanes_with_crossings(lane: Ints, start: Ints, end: Ints) -> Ints:
    """The lanes where a stack of slices would close one at another's end.

    In a proper nesting, begins and ends at one depth alternate, and each end is that of the begin
    before it; so one sort by depth finds every lane that breaks this, with no loop.
    """
    outer_first = np.lexsort((-end, start))
    lane, start, end = lane[outer_first], start[outer_first], end[outer_first]
    count = len(lane)
    time = np.concatenate([end, start])
    lanes = np.concatenate([lane, lane])
    ends_first = np.repeat(np.array([0, 1], np.int8), count)
    order = np.lexsort((ends_first, time, lanes))
    begins = ends_first[order] == 1
    depth = np.cumsum(np.where(begins, 1, -1)) + ~begins
    by_depth = order[np.argsort(depth, kind="stable")]
    opened, closed = by_depth[0::2], by_depth[1::2]
    # `opened` counts from the second half of `time`; its slice has its end in the first half.
    wrong = time[opened - count] != time[closed]
    return np.unique(lanes[opened[wrong]])


def _off_the_stack(start: Ints, end: Ints) -> NDArray[Any]:
    """True for the slices of one lane that would cross an earlier one on the stack."""
    order = np.lexsort((-end, start))
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
