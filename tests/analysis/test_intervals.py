"""Unions and nesting against the plainest possible count, looking at every moment; rows that are
alike; and parts that are worked on side by side, whose answers are those of one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from rltrace.analysis.timeline.intervals import (
    Intervals,
    Nested,
    OutOfOrder,
    Union,
    innermost,
    joined,
    of_spans,
    union,
)
from rltrace.testing.inside.analysis import intervals, mapped, numbered

NONE = np.zeros(8, np.bool_)
UNTIL = 60


def spans(*rows: tuple[int, int, int, int]) -> Intervals:
    """Rows of `(group, start, end, lane)`."""
    table = np.array(rows, np.int64).reshape(-1, 4)
    return of_spans(table[:, 0], table[:, 1], table[:, 2], table[:, 3])


def random_spans(seed: int, n: int = 40) -> Intervals:
    rng = np.random.default_rng(seed)
    start = np.sort(rng.integers(0, UNTIL - 10, n))
    group, length, lane = (rng.integers(0, most, n) for most in (4, 9, 3))
    return of_spans(group, start, start + length, lane)


def covered(intervals: Intervals) -> dict[int, list[bool]]:
    """By group that covers any, whether each moment lies in an interval of it."""
    moments: dict[int, list[bool]] = {}
    for group, start, end in zip(intervals.group, intervals.start, intervals.end, strict=True):
        mine = moments.setdefault(int(group), [False] * UNTIL)
        for moment in range(start, end):
            mine[moment] = True
    return {group: mine for group, mine in moments.items() if any(mine)}


@pytest.mark.parametrize("seed", range(20))
def test_a_union_covers_the_same_moments_and_is_disjoint(seed: int) -> None:
    given = random_spans(seed)
    found = union(given)
    assert covered(found) == covered(given)
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


def test_groups_too_many_and_too_far_apart_for_64_bits_are_still_told_apart() -> None:
    far = 1 << 55
    given = spans(*[(group, far * (group % 2), far * (group % 2) + 5, 0) for group in range(999)])
    found = union(given)
    assert len(found) == 999
    assert (found.end - found.start == 5).all()


def test_touching_spans_merge_and_lanes_are_remembered() -> None:
    found = union(spans((0, 0, 5, 1), (0, 5, 9, 1), (1, 0, 5, 1), (1, 3, 9, 2)))
    assert (found.start.tolist(), found.end.tolist()) == ([0, 0], [9, 9])
    assert found.one_lane.tolist() == [True, False]
    backwards = union(spans((0, 7, 3, 0)))  # one that ends before it begins has no length
    assert backwards.start.tolist() == backwards.end.tolist() == [7]
    assert len(union(joined([]))) == len(innermost(joined([]), *[np.zeros(0, np.int64)] * 2)) == 0
    parts = Union()
    assert parts.bounds() == (0, 0)
    parts.add(spans((0, 5, 9, 1)))
    with pytest.raises(OutOfOrder):
        parts.add(spans((0, 4, 9, 1)))


def test_other_lanes_and_other_processes_take_nothing_away() -> None:
    given = union(spans((0, 0, 30, 1), (1, 5, 20, 2)))
    assert sorted(innermost(given, np.array([0, 0]), NONE[:2]).end.tolist()) == [20, 30]
    given = union(spans((0, 0, 30, 1), (1, 5, 20, 1)))
    assert sorted(innermost(given, np.array([0, 1]), NONE[:2]).end.tolist()) == [20, 30]


@pytest.mark.parametrize("seed", range(20))
def test_nesting_of_any_depth_matches_a_stack(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, int, int, int]] = []
    expected: dict[int, list[bool]] = {}

    def nest(start: int, end: int, group: int) -> None:
        rows.append((group, start, end, 0))
        expected.setdefault(group, [False] * UNTIL)
        for moment in range(start, end):
            for number, moments in expected.items():
                moments[moment] = number == group
        cuts = sorted(rng.integers(start, end + 1, 4).tolist())
        if group < 4 and end - start > 4:
            for a, b in ((cuts[0], cuts[1]), (cuts[2], cuts[3])):
                if b > a:
                    nest(a, b, group + 1)

    nest(0, UNTIL - 1, 0)
    given = union(spans(*rows))
    none = np.zeros(len(given), np.int64)
    found = covered(innermost(given, none, none.astype(bool)))
    assert found == {group: moments for group, moments in expected.items() if any(moments)}
    # What runs within a whole one is of its group, however deep.
    found = covered(innermost(given, none, given.group == 1))
    for group in expected.keys() - {0, 1}:
        expected[1] = [a or b for a, b in zip(expected[1], expected.pop(group), strict=True)]
    assert found == {group: moments for group, moments in expected.items() if any(moments)}


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
    truth = covered(innermost(together, process[together.group], NONE[together.group]))
    nested, pieces = Nested(), []
    for begin in range(0, len(rows), chunk):
        part = spans(*rows[begin : begin + chunk])
        pieces.append(nested.add(part, process, NONE, int(part.start.max())))
    assert covered(joined([*pieces, nested.rest(process, NONE)])) == truth


@pytest.mark.parametrize("n", [0, 1, 200])
def test_rows_that_are_alike_have_one_number(n: int) -> None:
    rng = np.random.default_rng(n)
    ids = np.array([-(2**62), -1, 0, 7, 2**62], np.int64)
    one, other = ids[rng.integers(0, 5, n)], rng.integers(-2, 2, n)
    number, first = numbered(one, other)
    rows = list(zip(one.tolist(), other.tolist(), strict=True))
    alike = {row: place for place, row in enumerate(sorted(set(rows)))}
    assert number.tolist() == [alike[row] for row in rows]
    assert first.tolist() == [rows.index(row) for row in alike]


@pytest.fixture(params=[1, 2, 8], ids=["one core", "two cores", "eight cores"])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(intervals.os, "cpu_count", lambda: request.param)
    return int(request.param)


@pytest.mark.parametrize("parts", [0, 1, 2, 3, 50])
def test_answers_come_in_order_and_few_parts_are_made_ahead(cores: int, parts: int) -> None:
    made: list[int] = []

    def some() -> Iterator[int]:
        for n in range(parts):
            made.append(n)
            yield n

    answers = []
    for used, answer in enumerate(mapped(lambda n: n * n, some())):
        answers.append(answer)
        assert len(made) <= used + 4
    assert answers == [n * n for n in range(parts)]


@pytest.mark.parametrize("wrong", [0, 1, 20])
def test_what_a_part_or_its_maker_raises_is_raised(cores: int, wrong: int) -> None:
    with pytest.raises(ZeroDivisionError):
        list(mapped(lambda n: 1 / (n - wrong), range(40)))

    def parts() -> Iterator[int]:
        yield from range(wrong)
        raise EOFError

    with pytest.raises(EOFError):
        list(mapped(abs, parts()))


@pytest.mark.parametrize("cores", [2], indirect=True)
def test_two_parts_are_worked_on_at_once_and_none_once_nobody_asks(cores: int) -> None:
    both = threading.Barrier(cores, timeout=60)  # which one alone never passes
    assert len(list(mapped(lambda _: both.wait(), range(4)))) == 4
    before = threading.active_count()
    answers = mapped(abs, iter(range(1_000_000_000)))
    assert [next(answers), next(answers)] == [0, 1]
    answers.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
