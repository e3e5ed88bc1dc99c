"""Unions of intervals, vectorised and in one pass over tens of millions of spans.

Each chunk that is read is reduced at once to the union of every process and stage, so memory does
not grow with the trace. Times are int64 nanoseconds; intervals are half-open.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

_Columns = TypeVar("_Columns", bound="Columns")
_Part = TypeVar("_Part")
_Found = TypeVar("_Found")

_LARGEST = 1 << 62
_MOST = 4  # parts of a long run that are worked on at once: each is in memory


def places(chosen: Ints | Bools) -> Ints:
    """Taking several columns by places costs a quarter of taking each by a mask."""
    chosen = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
    return chosen.astype(np.int64, copy=False)


@dataclass(frozen=True)
class Columns:
    """Arrays of one length, the fields of a subclass: a place for each row."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def take(self: _Columns, chosen: Bools | Ints) -> _Columns:
        at = places(chosen)
        return replace(self, **{name: column.take(at) for name, column in vars(self).items()})


@dataclass(frozen=True)
class Intervals(Columns):
    """Intervals by group. `lane` is that of all spans that an interval was merged from, where they
    are of `one_lane`."""

    group: Ints
    start: Ints
    end: Ints
    lane: Ints
    one_lane: Bools

    def until(self, moments: Ints | Floats) -> Floats:
        """Of a union of one group: how much of it lies before each moment, ns."""
        length = np.concatenate([[0], np.cumsum(self.end - self.start)])
        begun = np.searchsorted(self.start, moments, side="right")
        over = np.maximum(0, np.append(0, self.end)[begun] - moments)
        return np.asarray(length[begun] - np.where(begun > 0, over, 0), np.float64)


def of_spans(group: Ints, start: Ints, end: Ints, lane: Ints | None = None) -> Intervals:
    """Spans as intervals, of one lane where none is given; what ends before it begins has no
    length."""
    lane = np.zeros_like(start) if lane is None else lane
    return Intervals(group, start, np.maximum(start, end), lane, np.ones(len(start), np.bool_))


def joined(parts: list[Intervals]) -> Intervals:
    none = np.zeros(0, np.int64)
    if not parts:
        return of_spans(none, none, none)
    return Intervals(*map(np.concatenate, zip(*(vars(p).values() for p in parts), strict=True)))


def union(intervals: Intervals) -> Intervals:
    """The union of each group: disjoint intervals in order of group and start. Touching ones merge.
    One running maximum serves all groups, since `_in_line` puts them one behind the other."""
    if not len(intervals):
        return intervals
    ordered = intervals.take(_order(intervals))
    start, end = _in_line(_numbered(ordered.group), ordered.start, ordered.end)
    first = np.flatnonzero(np.append(True, start[1:] > np.maximum.accumulate(end)[:-1]))
    lane = ordered.lane[first]
    one_lane = np.minimum.reduceat(ordered.lane, first) == np.maximum.reduceat(ordered.lane, first)
    one_lane &= np.logical_and.reduceat(ordered.one_lane, first)
    last_end = np.maximum.reduceat(ordered.end, first)
    return Intervals(ordered.group[first], ordered.start[first], last_end, lane, one_lane)


def merged(start: Ints, end: Ints) -> Intervals:
    return union(of_spans(np.zeros_like(start), start, end))


class OutOfOrder(ValueError):
    """Spans came that begin before spans which were taken in already."""


class Union:
    """The union of spans that come chunk by chunk in the order of their start."""

    def __init__(self) -> None:
        self._done: list[tuple[int, Intervals]] = []  # ended before the next chunk, after this time
        self._active = joined([])
        self._reached = -_LARGEST

    def add(self, chunk: Intervals) -> None:
        """Takes more spans in. Errors: `OutOfOrder`."""
        if not len(chunk):
            return
        if int(chunk.start.min()) < self._reached:
            raise OutOfOrder
        before, self._reached = self._reached, int(chunk.start.max())
        merged = union(joined([self._active, chunk]))
        active = merged.end >= self._reached
        self._done.append((before, _narrow(merged.take(~active))))
        still = merged.take(active)
        self._active = still.take(np.argsort(still.start, kind="stable"))

    def slices(
        self, first: int = -_LARGEST, last: int = _LARGEST
    ) -> Iterator[tuple[int, int, Intervals]]:
        """`(from, to, intervals)`: slices of time, the last first, which together cover what is
        between the moments, with the intervals that overlap each, whole; a group's are disjoint."""
        later, end = joined([]), _LARGEST
        for start, kept in ((self._reached, self._active), *reversed(self._done)):
            if end <= first:
                return
            part = replace(kept, group=kept.group.astype(np.int64))
            if start >= last:
                later, end = joined([part.take(part.start < last), later]), start
                continue
            overlapping = joined([part, later])
            yield start, end, overlapping
            later, end = overlapping.take(overlapping.start < start), start

    def bounds(self) -> tuple[int, int]:
        """The first start and the last end; 0 and 0 where there is nothing."""
        parts = [part for _, part in (*self._done, (0, self._active)) if len(part)]
        starts, ends = (p.start.min() for p in parts), (p.end.max() for p in parts)
        return (int(min(starts)), int(max(ends))) if parts else (0, 0)


def _narrow(intervals: Intervals) -> Intervals:
    """With groups in half the space, where they fit: of a long run millions are kept."""
    if len(intervals) and int(intervals.group.max()) < 1 << 31:
        return replace(intervals, group=intervals.group.astype(np.int32))
    return intervals


class Nested:
    """Spans that come likewise, each cut to when nothing in its own lane runs within it."""

    def __init__(self) -> None:
        self._open = joined([])

    def add(self, chunk: Intervals, context: Ints, whole: Bools, reached: int) -> Intervals:
        """What is theirs before `reached`, where the next chunk begins at the earliest. `context`
        maps each group to its process, `whole` as of `innermost`."""
        spans = joined([self._open, chunk])
        pieces = innermost(spans, context[spans.group], whole[spans.group])
        goes_on = spans.end > reached
        self._open = between(spans.take(goes_on), reached, _LARGEST)
        return _whole(between(pieces, -_LARGEST, reached))

    def rest(self, context: Ints, whole: Bools) -> Intervals:
        group = self._open.group
        return _whole(innermost(self._open, context[group], whole[group]))


def between(intervals: Intervals, since: int, until: int) -> Intervals:
    start, end = intervals.start.clip(since), intervals.end.clip(max=until)
    return replace(intervals, start=start, end=end).take(end > start)


def _whole(pieces: Intervals) -> Intervals:
    """Pieces from which nothing is to be cut any more."""
    return replace(pieces, one_lane=np.zeros(len(pieces), np.bool_))


def innermost(intervals: Intervals, context: Ints, whole: Bools) -> Intervals:
    """Cuts out of each interval what another that began within it, in the same lane, occupies; what
    runs within a `whole` one is of its group. Spans of a lane nest, so an instant belongs to the
    innermost; intervals of several lanes are left whole. `context`, a number for each, tells the
    lanes of different processes apart. The pieces are unordered."""
    meets = intervals.one_lane & _meets_another(intervals, context)
    parts = [intervals.take(~meets)]
    single = np.flatnonzero(meets)
    keys = (-intervals.end, intervals.start, intervals.lane, context)
    order = single[np.lexsort(tuple(key[single] for key in keys))]
    if len(order):
        nested = intervals.take(order)
        start, end = _in_line(_numbered(context[order], nested.lane), nested.start, nested.end)
        rest, whole = np.arange(len(nested)), whole[order]
        above: Ints | None = None
        while len(rest):
            outer = np.append(True, start[rest[1:]] >= np.maximum.accumulate(end[rest])[:-1])
            level, rest = rest[outer], rest[~outer]
            if above is not None:
                holder = np.searchsorted(start[above], start[level], side="right") - 1
                parts.append(_without(nested.take(above), nested.take(level), holder))
                held = whole[above][holder]
                whole[level[held]] = True
                nested.group[level[held]] = nested.group[above[holder[held]]]
            above = level
        assert above is not None
        parts.append(nested.take(above))
    return joined(parts)


def without(intervals: Intervals, gone: Intervals) -> Intervals:
    """`intervals` less those `gone` of their group, which are disjoint; unordered."""
    here = np.isin(intervals.group, np.unique(gone.group))
    if not here.any():
        return intervals
    cut = union(intervals.take(here))
    pieces, (still, over) = overlaid(cut, gone.take(np.isin(gone.group, np.unique(cut.group))))
    return joined([intervals.take(~here), pieces.take((still == 1) & (over == 0))])


def overlaid(*layers: Intervals) -> tuple[Intervals, list[Ints]]:
    """Pieces between edges of each group's intervals, and how many of each layer run in them."""
    group = np.concatenate([np.tile(layer.group, 2) for layer in layers])
    times = np.concatenate([times for layer in layers for times in (layer.start, layer.end)])
    order = np.lexsort((times, group))
    group, times = group[order], times[order]
    some = np.flatnonzero(np.diff(times) > 0)
    sizes = [len(layer) for layer in layers for _ in range(2)]
    changes = np.repeat(np.kron(np.eye(len(layers), dtype=np.int64), [1, -1]), sizes, axis=1)
    running = [np.cumsum(change[order])[some] for change in changes]
    return of_spans(group[some], times[some], times[some + 1]), running


def run_before(start: Ints, end: Ints, moments: Ints | Floats) -> Floats:
    """How long all these intervals had run before each moment, added up, ns. Times are since an
    origin near them: large ones are not told apart as floats."""

    def since(times: Ints) -> Floats:
        ordered = np.sort(times).astype(np.float64)
        total = np.concatenate([[0.0], np.cumsum(ordered)])
        before = np.searchsorted(ordered, moments)
        return np.asarray(before * moments.astype(np.float64) - total[before])

    return since(start) - since(end)


def _meets_another(intervals: Intervals, context: Ints) -> Bools:
    meets = np.zeros(len(intervals), np.bool_)
    if len(intervals) > 1:
        order = np.argsort(intervals.start, kind="stable")  # long parts are in order already
        order = order[by_number(context[order])]
        number = _numbered(context[order])
        start, end = _in_line(number, intervals.start[order], intervals.end[order])
        meets[order[1:]] = start[1:] < np.maximum.accumulate(end)[:-1]
        meets[order[:-1]] |= end[:-1] > start[1:]
    return meets


def _without(outer: Intervals, inner: Intervals, holder: Ints) -> Intervals:
    """`outer` less `inner`; `holder` is the place in `outer` of what holds each of `inner`."""
    places = np.arange(len(outer))
    inner_end = np.minimum(inner.end, outer.end[holder])
    by_start = np.argsort(np.concatenate([places, holder]), kind="stable")
    by_end = np.argsort(np.concatenate([holder, places]), kind="stable")
    pieces = outer.take(np.concatenate([places, holder])[by_start])
    start = np.concatenate([outer.start, inner_end])[by_start]
    end = np.concatenate([inner.start, outer.end])[by_end]
    return replace(pieces, start=start, end=end).take(end > start)


def _order(intervals: Intervals) -> Ints:
    """Places in order of group and start, by the cheapest sort that will do."""
    group, start = intervals.group, intervals.start
    if bool((start[1:] < start[:-1]).any()):
        return np.lexsort((start, group))
    return by_number(group)


def by_number(column: Ints) -> Ints:
    """Places in the order of a column of numbers from 0 on, alike ones in their own order."""
    order = np.argsort(column.astype(np.uint16), kind="stable")  # on 16 bits this is a radix sort
    most, bits = int(column.max(initial=0)), 16
    while most >> bits:
        digits = (column >> bits).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
        bits += 16
    return order


def _numbered(*sorted_keys: Ints) -> Ints:
    """0, 0, 1, 2, 2 ...: the number of each run of equal keys."""
    changed = np.logical_or.reduce([key[1:] != key[:-1] for key in sorted_keys])
    return np.cumsum(np.append(False, changed))[: len(sorted_keys[0])]


def _in_line(number: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Start and end moved so that each number's times lie past those of the number before."""
    origin = int(start.min())
    width = int(end.max()) - origin + 1
    if (int(number[-1]) + 1) * width < _LARGEST:
        shift = number * width - origin
        return start + shift, end + shift
    # Too many lanes for 64 bits of nanoseconds: their order is all that counts.
    values, ranks = np.unique(np.concatenate([start, end]), return_inverse=True)
    shift = number * len(values)
    return ranks[: len(start)] + shift, ranks[len(start) :] + shift


def mapped(function: Callable[[_Part], _Found], parts: Iterable[_Part]) -> Iterator[_Found]:
    """`map(function, parts)`, where some parts are worked on while an earlier answer is used; they
    are made one after the other, by who asks for answers."""
    at_once = min(_MOST, os.cpu_count() or 1)
    waiting: deque[Future[_Found]] = deque()
    with ThreadPoolExecutor(at_once) as threads:
        for part in parts:
            waiting.append(threads.submit(function, part))
            if len(waiting) == at_once:
                yield waiting.popleft().result()
        yield from (one.result() for one in waiting)
