"""Slices of one track always nest, and no more tracks are used than the overlap asks for."""

from __future__ import annotations

import numpy as np
import pytest

from rltrace.report.perfetto.tracks import OPEN, Ints, nest, pack


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def crosses(start: Ints, end: Ints) -> bool:
    """Whether any two slices overlap without one holding the other."""
    a, b, c, d = start[:, None], end[:, None], start[None, :], end[None, :]
    return bool(((a < c) & (c < b) & (b < d)).any())


@pytest.mark.parametrize("seed", range(40))
def test_any_spans_end_up_nested_and_few_are_moved(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 60))
    lane = random.integers(0, 4, count)
    start = random.integers(0, 50, count)
    end = start + random.integers(0, 12, count)
    end[random.random(count) < 0.05] = OPEN
    extra = nest(lane, start, end)
    for one in set(zip(lane.tolist(), extra.tolist(), strict=True)):
        members = (lane == one[0]) & (extra == one[1])
        assert not crosses(start[members], end[members])
    for one in range(4):
        members = lane == one
        if not crosses(start[members], end[members]):
            assert not extra[members].any(), "a lane that nests stays as it is"


def test_only_what_crosses_is_moved() -> None:
    start, end = ints(0, 10, 20, 90, 120), ints(100, 30, 25, 110, 130)
    assert nest(ints(7, 7, 7, 7, 7), start, end).tolist() == [0, 0, 0, 1, 0]
    # A span left open inside an ended one does not take its end.
    assert nest(ints(1, 1, 1), ints(0, 10, 50), ints(40, OPEN, 60)).tolist() == [0, 1, 0]
    # What touches or is empty stays.
    start, end = ints(0, 10, 10, 10, 5), ints(10, 20, 10, 10, 5)
    assert not nest(ints(1, 1, 1, 1, 1), start, end).any()
    assert len(nest(ints(), ints(), ints())) == len(pack(ints(), ints())) == 0


@pytest.mark.parametrize("seed", range(20))
def test_packing_uses_as_many_rows_as_overlap_at_the_busiest_moment(seed: int) -> None:
    random = np.random.default_rng(seed)
    start = random.integers(0, 1000, 200)
    end = start + random.integers(1, 100, 200)
    rows = pack(start, end)
    for row in range(int(rows.max()) + 1):
        order = np.argsort(start[rows == row])
        assert (end[rows == row][order][:-1] <= start[rows == row][order][1:]).all()
    moments = np.arange(1100)[:, None]
    busiest = ((start <= moments) & (moments < end)).sum(axis=1).max()
    assert rows.max() + 1 == busiest
