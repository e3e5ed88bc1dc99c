"""Parts that are worked on side by side: the answers are those of one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rltrace.testing.inside.analysis import intervals, mapped


@pytest.fixture(params=[1, 2, 8], ids=["one core", "two cores", "eight cores"])
def _cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals.os, "cpu_count", lambda: request.param)


@pytest.mark.usefixtures("_cores")
@pytest.mark.parametrize("parts", [0, 1, 2, 3, 50])
def test_answers_come_in_the_order_of_the_parts(parts: int) -> None:
    assert list(mapped(lambda n: n * n, range(parts))) == [n * n for n in range(parts)]


@pytest.mark.usefixtures("_cores")
def test_few_parts_are_made_before_their_answers_are_used() -> None:
    made = []

    def parts() -> Iterator[int]:
        for n in range(50):
            made.append(n)
            yield n

    for used, _ in enumerate(mapped(abs, parts())):
        assert len(made) <= used + 4


@pytest.mark.usefixtures("_cores")
@pytest.mark.parametrize("wrong", [0, 1, 20])
def test_what_a_part_raises_is_raised(wrong: int) -> None:
    def inverse(n: int) -> float:
        return 1 / (n - wrong)

    with pytest.raises(ZeroDivisionError):
        list(mapped(inverse, range(40)))


@pytest.mark.usefixtures("_cores")
def test_what_makes_the_parts_may_raise() -> None:
    def parts() -> Iterator[int]:
        yield from (1, 2, 3)
        raise EOFError

    with pytest.raises(EOFError):
        list(mapped(abs, parts()))


def test_nothing_goes_on_once_nobody_asks_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals.os, "cpu_count", lambda: 2)
    before = threading.active_count()
    answers = mapped(abs, iter(range(1_000_000_000)))
    assert [next(answers), next(answers)] == [0, 1]
    answers.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_two_parts_are_worked_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals.os, "cpu_count", lambda: 2)
    both = threading.Barrier(2, timeout=60)  # which one alone never passes
    assert len(list(mapped(lambda _: both.wait(), range(4)))) == 4
