"""Arrows from samples over verdicts and uses to policy versions and their parts.

An arrow begins at the slice that starts no later: the engine would turn it round otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.report.perfetto.scene import OPEN, Flows, Ints, Slices, factor
from rltrace.trace.vocabulary import Fate

_GENERATED, _JUDGED, _USED, _VERSION, _PART = range(5)
Link = tuple[int, Ints, int, Ints]  # kind and rows of where arrows begin, and of where they end


def linked(kinds: Sequence[Slices], of_part: Ints) -> tuple[tuple[Slices, ...], int]:
    """Generations to parts with their arrows, and the number of these; `of_part`: see `places`."""
    return with_arrows(kinds, [link for link in _links(kinds, of_part) if len(link[1])])


def with_arrows(
    kinds: Sequence[Slices], links: Sequence[Link], after: int = 0
) -> tuple[tuple[Slices, ...], int]:
    """Slices with the arrows of `links`, and the number of these; ids up to `after` are taken."""
    rows: list[list[Ints]] = [[] for _ in kinds]
    ids: list[list[Ints]] = [[] for _ in kinds]
    made = 0
    for source, begins, target, ends in links:
        numbers = np.arange(made, made + len(begins)) + after + 1
        made += len(begins)
        for kind, at in ((source, begins), (target, ends)):
            rows[kind].append(at)
            ids[kind].append(numbers)
    drawn = list(kinds)
    for kind, slices in enumerate(kinds):
        if rows[kind]:
            at, number = np.concatenate(rows[kind]), np.concatenate(ids[kind])
            count = np.bincount(at, minlength=len(slices))
            in_order = number[np.argsort(at, kind="stable")]
            drawn[kind] = replace(slices, flows=Flows(np.cumsum(count) - count, count, in_order))
    return tuple(drawn), made


def _links(kinds: Sequence[Slices], of_part: Ints) -> list[Link]:
    samples = [kind.of["trajectory"] for kind in kinds[: _USED + 1]]
    trajectories, code = factor(np.concatenate(samples))
    of_generated, of_judged, of_used = np.split(code, np.cumsum([len(s) for s in samples])[:-1])
    unknown = int(np.searchsorted(trajectories, -1)) if -1 in trajectories else -1

    # By trajectory: where its generation began first, and the verdict that was reached last.
    begun = _chosen(of_generated, -kinds[_GENERATED].start, len(trajectories))
    ends = kinds[_JUDGED].end
    reached = np.flatnonzero(ends != OPEN)
    verdict = _chosen(of_judged[reached], ends[reached], len(trajectories))
    verdict = np.where(verdict >= 0, np.append(reached, -1)[verdict], -1)
    if unknown >= 0:
        begun[unknown] = verdict[unknown] = -1

    def arrows(source: int, begins: Ints, target: int, ends: Ints) -> tuple[Link, NDArray[Any]]:
        """Arrows where both ends are known and in order; and which of all these are."""
        possible = (begins >= 0) & (ends >= 0)
        at = np.flatnonzero(possible)
        in_order = kinds[source].start[begins[at]] <= kinds[target].start[ends[at]]
        possible[at[~in_order]] = False
        return (source, begins[possible], target, ends[possible]), possible

    def from_sample(target: int, ends: Ints, of_end: Ints) -> list[Link]:
        """Arrows from the last verdict on a sample, or from its generation where there is none."""
        judged_first, from_verdict = arrows(_JUDGED, verdict[of_end], target, ends)
        rest = np.where(from_verdict, -1, begun[of_end])
        return [judged_first, arrows(_GENERATED, rest, target, ends)[0]]

    every_use = np.arange(len(of_used))
    version = _version_made(kinds[_USED], kinds[_VERSION])
    direct, booked_first = arrows(_USED, every_use, _VERSION, version)
    late = np.where(booked_first, -1, version)
    every_part = np.arange(len(of_part))
    return [
        arrows(_GENERATED, begun[of_judged], _JUDGED, np.arange(len(of_judged)))[0],
        *from_sample(_USED, every_use, of_used),
        direct,
        *from_sample(_VERSION, late, of_used),  # booked only after the update was made
        arrows(_VERSION, of_part, _PART, every_part)[0],
    ]


def _chosen(code: Ints, rank: Ints, size: int) -> Ints:
    """For each code the row with the largest rank, -1 where there is none."""
    rows = np.full(size, -1, np.int64)
    order = np.argsort(rank, kind="stable")
    rows[code[order]] = order
    return rows


def _version_made(used: Slices, made: Slices) -> Ints:
    """For each use the place of the version that was made of it, the next one (the nearest in time
    of several of that number); -1: not trained on, or not seen."""
    place, by = np.full(len(used), -1, np.int64), used.of["version"]
    if not len(made):
        return place
    trained = np.flatnonzero((used.of["fate"] == Fate.TRAINED) & (by >= 0))
    order = np.lexsort((made.start, made.of["version"]))
    versions, starts = made.of["version"][order], made.start[order]
    next_version = by[trained].astype(np.int64) + 1
    first = np.searchsorted(versions, next_version, side="left")
    count = np.searchsorted(versions, next_version, side="right") - first
    known = count > 0
    rows, first, count = trained[known], first[known], count[known]
    best, time = first.copy(), used.start[rows]
    for nth in range(1, int(count.max(initial=1))):
        other = np.minimum(first + nth, first + count - 1)
        nearer = np.abs(starts[other] - time) < np.abs(starts[best] - time)
        best = np.where(nearer, other, best)
    place[rows] = order[best]
    return place
