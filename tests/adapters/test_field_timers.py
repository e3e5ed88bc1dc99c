"""Timers of frameworks as spans: blocks that raise, nest, are decorators or asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.adapters.table.timers import stage_of, start_stop, timed_block
from rltrace.testing.inside.hooks import Observer, wrap
from rltrace.testing.inside.hooks import recorder as recording
from rltrace.testing.inside.trace import create_run

LABELS = {"total": "step", "gen": "rollout", "idle/": "wait", "quiet": ""}


@contextmanager
def timed(label: str) -> Iterator[str]:
    """A framework's timer, which gives its label."""
    yield label


@asynccontextmanager
async def timed_async(label: str) -> AsyncIterator[str]:
    """An asynchronous one."""
    yield label


class Timer:
    """One with two methods."""

    def start(self, label: str) -> None:
        """Starts."""

    def stop(self, label: str) -> None:
        """Stops."""


@pytest.fixture
def run_path(tmp_path: Path) -> Iterator[Path]:
    """A run that this process records into."""
    path = tmp_path / "run"
    create_run(str(path), ["test"], {}, rltrace.__version__)
    assert recording.start(str(path)) is not None
    yield path
    recording.stop()


def hooked(function: Any) -> Any:
    """The timer with the hook for it."""
    return wrap(function, Observer(timed_block("a:b", LABELS, "label")))


def spans(path: Path) -> list[Any]:
    """Name, stage, and whether it is known how long it took, of the spans in the order of time."""
    recording.stop()
    what = "SELECT name, stage, coalesce(end_ns > start_ns, false) FROM spans ORDER BY start_ns"
    return rltrace.open_run(path).sql(what).fetchall()


@pytest.mark.parametrize(
    ("label", "stage"),
    [("gen", "rollout"), ("idle/queue", "wait"), ("quiet", ""), ("new", "other"), ("a/b", "other")],
)
def test_a_label_has_its_stage_or_that_of_its_part(label: str, stage: str) -> None:
    assert stage_of(LABELS, label) == stage


def test_a_block_lasts_as_long_as_its_body_and_gives_what_it_gave(run_path: Path) -> None:
    block = hooked(timed)
    with block("total"), block("gen") as given, block("quiet"), block("idle/x"):
        assert given == "gen"
    assert spans(run_path) == [
        ("step", "step", True), ("gen", "rollout", True), ("idle/x", "wait", True)
    ]  # fmt: skip


def test_what_a_body_raises_comes_out_and_its_step_has_no_end(run_path: Path) -> None:
    block = hooked(timed)
    with pytest.raises(KeyError, match="theirs"), block("total"), block("gen"):
        raise KeyError("theirs")
    recorder = recording.active()
    assert recorder is not None
    assert recorder.open_step is None
    assert spans(run_path) == [("step", "step", False), ("gen", "rollout", True)]


def test_a_block_is_a_decorator_still(run_path: Path) -> None:
    decorated = hooked(timed)("gen")(lambda number: number + 1)
    assert [decorated(1), decorated(2)] == [2, 3]
    assert spans(run_path) == [("gen", "rollout", True)] * 2


def test_an_asynchronous_block_is_one_span(run_path: Path) -> None:
    async def job() -> str:
        async with hooked(timed_async)("gen") as given:
            await asyncio.sleep(0)
            return str(given)

    assert asyncio.run(job()) == "gen"
    assert spans(run_path) == [("gen", "rollout", True)]


def test_timers_of_two_objects_do_not_meet(run_path: Path) -> None:
    start, stop = start_stop("a:T.start", "a:T.stop", LABELS, lambda c: str(c.argument("label")))
    begins, ends = wrap(Timer.start, Observer(start)), wrap(Timer.stop, Observer(stop))
    one, other = Timer(), Timer()
    begins(one, "gen")
    begins(other, "gen")
    ends(one, "gen")
    ends(other, "never started")
    assert spans(run_path) == [("gen", "rollout", True), ("gen", "rollout", False)]
