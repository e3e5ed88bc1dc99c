"""Tokens that were sampled are told from those that only read the same."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from rltrace.adapters.sampled import Sampled, runs

ANSWERS = ([5, 6, 7], [8, 9], [5, 6])


def sampled(most: int = 100) -> Sampled:
    found = Sampled(most)
    for ids in ANSWERS:
        found.add(ids)
    return found


@pytest.mark.parametrize(
    ("run", "held"),
    [
        ([5, 6, 7], True),
        ([5, 6], True),
        ([5, 6, 7, 8, 9], True),  # two answers with nothing between them: one was resumed
        ([5, 6, 7, 8], True),  # ... and cut
        ([5, 6, 8, 9, 5], True),
        ([5, 67], False),  # a merged pair in place of the two tokens that were sampled
        ([5, 6, 7, 8, 8], False),
        ([6, 7], False),
        ([], True),
    ],
)
def test_a_run_is_made_of_answers(run: list[int], held: bool) -> None:
    assert sampled().hold([run]) == held


@pytest.mark.parametrize(
    ("answers", "run"),
    [
        ([[5], [5, 6, 7]], [5, 6]),  # cut, where another is what it begins with
        ([[5], [6, 7], [5, 6]], [5, 6, 7]),  # not of the longest that it begins with
        ([[5], [5, 5, 5, 6]], [5] * 40 + [6]),
    ],
)
def test_an_answer_that_another_begins_with_is_seen(
    answers: list[list[int]], run: list[int]
) -> None:
    found = Sampled()
    for ids in answers:
        found.add(ids)
    assert found.hold([run])
    assert not found.hold([[*run, 9]])


def test_every_run_has_to_be() -> None:
    assert sampled().hold([[5, 6, 7], [8, 9]])
    assert not sampled().hold([[5, 6, 7], [8, 10]])
    assert not Sampled().hold([[5]])


def test_the_latest_answers_are_remembered() -> None:
    few = sampled(most=2)
    assert few.count == 3
    assert few.hold([[8, 9, 5, 6]])
    assert not few.hold([[5, 6, 7]])


@pytest.mark.parametrize("kind", [list, tuple, lambda values: array("q", values)])
def test_runs_are_what_the_mask_says(kind: object) -> None:
    assert callable(kind)
    ids, mask = kind([1, 2, 3, 4, 5, 6]), kind([0, 1, 1, 0, 0, 1])
    assert [list(run) for run in runs(ids, mask)] == [[2, 3], [6]]
    assert list(runs(ids, kind([0] * 6))) == []


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("often_switched")
def test_several_threads_may_add_at_the_limit() -> None:
    found, numbers = Sampled(most=1), count()

    def add(times: int) -> None:
        for _ in range(times):
            found.add([next(numbers)])

    with ThreadPoolExecutor(4) as threads:
        for thread in [threads.submit(add, 20_000) for _ in range(4)]:
            thread.result()
    found.add([-1])
    assert found.hold([[-1]])
    assert not found.hold([[0]])
