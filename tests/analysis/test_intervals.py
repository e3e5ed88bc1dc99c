"""Unions and nesting against the plainest possible count: looking at every moment."""

from __future__ import annotations

import numpy as np
import pytest

from rltrace.analysis.intervals import (
    Intervals,
    Nested,
    OutOfOrder,
    Union,
    innermost,
    joined,
    of_spans,
    union,
)

UNTIL = 60


def spans(*rows: tuple[int, int, int, int]) -> Intervals:
    """Rows of `(group, start, end, lane)`."""
    table = np.array(rows, np.int64).reshape(-1, 4)
    return of_spans(table[:, 0], table[:, 1], table[:, 2], table[:, 3])


def random_spans(seed: int, n: int = 40) -> Intervals:
    rng = np.random.default_rng(seed)
    start = np.sort(rng.integers(0, UNTIL - 10, n))
    return of_spans(
        rng.integers(0, 4, n), start, start + rng.integers(0, 9, n), rng.integers(0, 3, n)
    )


def covered(intervals: Intervals, shift: int = 0) -> dict[int, list[bool]]:
    """By group, whether each moment lies in an interval of it."""
    moments: dict[int, list[bool]] = {}
    for group, start, end in zip(intervals.group, intervals.start, intervals.end, strict=True):
        mine = moments.setdefault(int(group), [False] * UNTIL)
        for moment in range(start - shift, end - shift):
            mine[moment] = True
    return moments


@pytest.mark.parametrize("seed", range(20))
def test_a_union_covers_the_same_moments_and_is_disjoint(seed: int) -> None:
    given = random_spans(seed)
    found = union(given)
    assert {g: m for g, m in covered(found).items() if any(m)} == {
        g: m for g, m in covered(given).items() if any(m)
    }
    for group in np.unique(found.group):
        mine = found.take(found.group == group)
        assert (mine.start[1:] > mine.end[:-1]).all()


@pytest.mark.parametrize("chunk", [1, 3, 7, 40])
@pytest.mark.parametrize("seed", range(5))
def test_slices_of_time_hold_the_intervals_of_the_whole_union(seed: int, chunk: int) -> None:
    given = random_spans(seed)
    parts = Union()
    for first in range(0, len(given), chunk):
        parts.add(given.take(np.arange(first, min(first + chunk, len(given)))))
    whole = union(given)
    assert parts.bounds() == (whole.start.min(), whole.end.max())
    edge = None
    for since, until, found in parts.slices():
        assert edge in (None, until)
        edge = since
        overlapping = (whole.start < until) & (whole.end >= since)
        expected = whole.take(overlapping & (whole.end > whole.start))
        held = union(found.take(found.end > found.start))
        for name in ("group", "start", "end", "one_lane"):
            assert getattr(expected, name).tolist() == getattr(held, name).tolist()
    assert edge is not None
    assert edge < whole.start.min()


def test_spans_out_of_order_are_refused() -> None:
    parts = Union()
    parts.add(spans((0, 5, 9, 1)))
    with pytest.raises(OutOfOrder):
        parts.add(spans((0, 4, 9, 1)))


def test_groups_too_many_and_too_far_apart_for_64_bits_are_still_told_apart() -> None:
    far = 1 << 55
    given = spans(*[(group, far * (group % 2), far * (group % 2) + 5, 0) for group in range(999)])
    found = union(given)
    assert len(found) == 999
    assert (found.end - found.start == 5).all()


def test_touching_spans_merge_and_lanes_are_remembered() -> None:
    found = union(spans((0, 0, 5, 1), (0, 5, 9, 1), (1, 0, 5, 1), (1, 3, 9, 2)))
    assert found.start.tolist() == [0, 0]
    assert found.end.tolist() == [9, 9]
    assert found.one_lane.tolist() == [True, False]


def test_nothing_has_an_empty_union() -> None:
    assert len(union(joined([]))) == 0
    assert Union().bounds() == (0, 0)
    assert len(innermost(joined([]), np.zeros(0, np.int64))) == 0


def test_a_span_that_ends_before_it_begins_has_no_length() -> None:
    found = union(spans((0, 7, 3, 0)))
    assert found.start.tolist() == found.end.tolist() == [7]


def test_an_instant_of_a_lane_belongs_to_the_innermost_span() -> None:
    given = union(spans((0, 0, 30, 1), (1, 5, 20, 1), (2, 8, 10, 1), (1, 25, 30, 1)))
    found = innermost(given, np.zeros(len(given), np.int64))
    pieces = sorted(
        zip(found.group.tolist(), found.start.tolist(), found.end.tolist(), strict=True)
    )
    assert pieces == [
        (0, 0, 5),
        (0, 20, 25),
        (1, 5, 8),
        (1, 10, 20),
        (1, 25, 30),
        (2, 8, 10),
    ]


def test_other_lanes_and_other_processes_take_nothing_away() -> None:
    given = union(spans((0, 0, 30, 1), (1, 5, 20, 2)))
    assert sorted(innermost(given, np.array([0, 0])).end.tolist()) == [20, 30]
    given = union(spans((0, 0, 30, 1), (1, 5, 20, 1)))
    assert sorted(innermost(given, np.array([0, 1])).end.tolist()) == [20, 30]


@pytest.mark.parametrize("seed", range(20))
def test_nesting_of_any_depth_matches_a_stack(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, int, int, int]] = []
    expected: dict[int, list[bool]] = {}

    def nest(start: int, end: int, depth: int, lane: int) -> None:
        group = depth * 10 + lane
        rows.append((group, start, end, lane))
        expected.setdefault(group, [False] * UNTIL)
        for moment in range(start, end):
            for number, moments in expected.items():
                moments[moment] = number == group
        cuts = sorted(rng.integers(start, end + 1, 4).tolist())
        if depth < 4 and end - start > 4:
            for a, b in ((cuts[0], cuts[1]), (cuts[2], cuts[3])):
                if b > a:
                    nest(a, b, depth + 1, lane)

    nest(0, UNTIL - 1, 0, 0)
    given = union(spans(*rows))
    found = covered(innermost(given, np.zeros(len(given), np.int64)))
    assert {g: m for g, m in found.items() if any(m)} == {
        g: m for g, m in expected.items() if any(m)
    }


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_nesting_in_chunks_is_that_of_all_spans_at_once(seed: int, chunk: int) -> None:
    """Lanes of two processes, each with spans that nest or follow each other."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, int, int, int]] = []
    for lane in range(4):
        for _ in range(4):
            start, inner, end = sorted(rng.choice(UNTIL - 1, 3, replace=False).tolist())
            if all(end <= s or start >= e for g, s, e, where in rows if where == lane):
                rows += [(lane % 2 * 2, start, end, lane), (lane % 2 * 2 + 1, inner, end, lane)]
    rows.sort(key=lambda row: row[1])
    process = np.arange(4) // 2
    together = spans(*rows)
    truth = covered(innermost(together, process[together.group]))
    nested, pieces = Nested(), []
    for begin in range(0, len(rows), chunk):
        part = spans(*rows[begin : begin + chunk])
        pieces.append(nested.add(part, process, int(part.start.max())))
    assert covered(joined([*pieces, nested.rest(process)])) == truth
