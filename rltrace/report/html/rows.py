"""On which row of the timeline each slice is drawn, so that no two of a row overlap."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from rltrace.report.html.slices import SPAN, Ints, Slices


@dataclass(frozen=True)
class Rows:
    """Slices in the order of their rows and then of time: `order` are their places in `Slices`,
    `first[i]` to `first[i + 1]` those of row i, which shows rows of `kind[i]` in `process[i]`."""

    order: Ints
    first: Ints
    process: Ints
    kind: Ints

    def __len__(self) -> int:
        return len(self.kind)


def lay_out(slices: Slices) -> Rows:
    """Rows by process and kind. Lanes (threads, tasks) that do not last at the same time share
    rows; within one, what lies within another is on the row below it."""
    rank = np.zeros(len(slices), np.int64)
    track = _tracks(slices)
    key = np.lexsort((track, slices.kind, slices.process))
    groups = _runs(slices.process[key], slices.kind[key], track[key])
    beneath: dict[tuple[int, int], int] = {}
    for begin, end in groups:
        members = key[begin:end]
        of = (int(slices.process[members[0]]), int(slices.kind[members[0]]))
        depth = stacked(slices.start_ns[members], slices.end_ns[members])
        rank[members] = depth + beneath.get(of, 0)
        beneath[of] = beneath.get(of, 0) + int(depth.max()) + 1
    order = np.lexsort((slices.start_ns, rank, slices.kind, slices.process))
    runs = _runs(slices.process[order], slices.kind[order], rank[order])
    first = np.array([begin for begin, _ in runs] + [len(order)], np.int64)
    heads = order[first[:-1]]
    return Rows(order, first, slices.process[heads], slices.kind[heads])


def _tracks(slices: Slices) -> Ints:
    """For each slice the track that its lane is on; lanes come and go by the thousand."""
    track = np.zeros(len(slices), np.int64)
    spans = np.flatnonzero(slices.kind == SPAN)
    if not len(spans):
        return track
    pairs = np.stack([slices.process[spans], slices.lane[spans]])
    lanes, lane = np.unique(pairs, axis=1, return_inverse=True)
    lane = lane.reshape(-1)
    first = np.full(lanes.shape[1], np.iinfo(np.int64).max)
    last = np.zeros(lanes.shape[1], np.int64)
    np.minimum.at(first, lane, slices.start_ns[spans])
    np.maximum.at(last, lane, slices.end_ns[spans])
    of_lane = np.zeros(lanes.shape[1], np.int64)
    for process in np.unique(lanes[0]):
        members = np.flatnonzero(lanes[0] == process)
        of_lane[members] = stacked(first[members], last[members])
    track[spans] = of_lane[lane]
    return track


def stacked(start: Ints, end: Ints) -> Ints:
    """For each interval the lowest row that is free when it begins, the longest of those that begin
    at once first: what lies within another comes to lie below it. An interval may begin where
    another ends; one of no length still takes its instant."""
    rows = np.zeros(len(start), np.int64)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    used = 0
    order = np.lexsort((-end, start))
    until = np.maximum(end, start + 1)
    for i, begins, ends in zip(order, start[order].tolist(), until[order].tolist(), strict=True):
        while busy and busy[0][0] <= begins:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row, used = used, used + 1
        heapq.heappush(busy, (ends, row))
        rows[i] = row
    return rows


def _runs(*keys: Ints) -> list[tuple[int, int]]:
    """Where runs of equal keys begin and end."""
    if not len(keys[0]):
        return []
    changes = np.zeros(len(keys[0]), np.bool_)
    changes[0] = True
    for key in keys:
        changes[1:] |= np.diff(key) != 0
    first = np.flatnonzero(changes).tolist()
    return list(zip(first, [*first[1:], len(keys[0])], strict=True))
