"""Tokens that were sampled are told from those that only read the same."""

from __future__ import annotations

import sys
from array import array
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rltrace.adapters.token_fidelity import Sampled, runs

TOKENS = st.lists(st.integers(1, 3), max_size=6)


def sampled(answers: list[list[int]], most: int = 100) -> Sampled:
    found = Sampled(most)
    for ids in answers:
        found.add(ids)
    return found


def is_made_of(run: list[int], answers: list[list[int]]) -> bool:
    """Whether a run is answers one after another, of which the last one may be cut."""
    return not run or any(
        ids[: len(run)] == run
        or (ids and run[: len(ids)] == ids and is_made_of(run[len(ids) :], answers))
        for ids in answers
    )


@given(st.lists(TOKENS, max_size=4), st.lists(TOKENS, max_size=3))
@example([[5, 6, 7], [8, 9]], [[5, 6, 7, 8, 9]])  # with nothing between them: one was resumed
@example([[5, 6, 7], [8, 9], [5, 6]], [[5, 6, 8, 9, 5]])
@example([[5, 6, 7]], [[5, 67]])  # a merged pair in place of the two tokens that were sampled
@example([[5], [6, 7], [5, 6]], [[5, 6, 7]])  # not of the longest that it begins with
@example([[5, 6, 7], [8, 9]], [[5, 6, 7], [8, 10]])
def test_every_run_has_to_be_made_of_answers(
    answers: list[list[int]], of_a_sample: list[list[int]]
) -> None:
    expected = all(is_made_of(run, answers) for run in of_a_sample)
    assert sampled(answers).hold(of_a_sample) == expected


def test_a_long_run_of_answers_that_begin_alike_is_seen_to_its_end() -> None:
    found = sampled([[5], [5, 5, 5, 6]])
    assert found.hold([[5] * 40 + [6]])
    assert not found.hold([[5] * 40 + [6, 9]])


def test_the_latest_answers_are_remembered() -> None:
    few = sampled([[5, 6, 7], [8, 9], [5, 6]], most=2)
    assert few.count == 3
    assert few.hold([[8, 9, 5, 6]])
    assert not few.hold([[5, 6, 7]])


@pytest.mark.parametrize("kind", [list, tuple, lambda values: array("q", values)])
def test_runs_are_what_the_mask_says(kind: Any) -> None:
    ids, mask = kind([1, 2, 3, 4, 5, 6]), kind([0, 1, 1, 0, 0, 1])
    assert [list(run) for run in runs(ids, mask)] == [[2, 3], [6]]
    assert list(runs(ids, kind([0] * 6))) == []


def test_several_threads_may_add_at_the_limit() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # they take turns as often as they can
    found, numbers = Sampled(most=1), count()

    def add(times: int) -> None:
        for _ in range(times):
            found.add([next(numbers)])

    try:
        with ThreadPoolExecutor(4) as threads:
            for thread in [threads.submit(add, 20_000) for _ in range(4)]:
                thread.result()
    finally:
        sys.setswitchinterval(before)
    found.add([-1])
    assert found.hold([[-1]])
    assert not found.hold([[0]])
