"""A probe delays stages by the doses that it drew, and changes nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rltrace
from rltrace.hooks.patch import span_decorator as decorate
from rltrace.hooks.probe import probing
from rltrace.testing.inside.hooks import Delays, Design, Hook, Observer, Patch, Recorder, span_api
from rltrace.testing.inside.hooks import call_observer as observing
from tests.hooks.conftest import found_in

WORK_S = 0.02
EARLIER_NS = 3600 * 10**9
"""A probe that began an hour ago has a budget for whatever a test does."""


class Always(Design):
    """Doses every stage at each step up to the seventh."""

    __slots__ = ()

    def doses(self, place: int) -> dict[str, float]:
        return dict.fromkeys(self.stages, self.dose) if place < 1 else {}


class Probe:
    """This process while it is probed: the delays that it gives, and what the run has of them."""

    def __init__(self, delays: Delays, recorder: Recorder) -> None:
        self.delays = delays
        self.run_path = Path(recorder.run_dir)

    def rows(self, query: str) -> list[Any]:
        return found_in(self.run_path, query)

    def slept(self) -> dict[str, float]:
        """Seconds slept by stage."""
        return dict(
            self.rows(
                "SELECT split_part(counter, '/', 2), sum(value) FROM samples "
                "WHERE counter LIKE 'probe/%/slept' GROUP BY 1"
            )
        )

    def sleeps(self) -> int:
        """How often a dose was given."""
        (found,) = self.rows("SELECT count(*) FROM samples WHERE counter LIKE 'probe/%/slept'")
        return int(found)

    def spans(self) -> dict[str, float]:
        """Seconds of ended spans, by stage."""
        return dict(
            self.rows(
                "SELECT stage, sum(end_ns - start_ns) / 1e9 FROM spans WHERE end_ns > 0 GROUP BY 1"
            )
        )

    def problems(self) -> dict[str, str]:
        """What could not be delayed, and why."""
        found = rltrace.open_run(self.run_path).problems
        return {p["target"]: p["detail"] for p in found if p["what"] == "not-probed"}


@pytest.fixture
def probe(recorder: Recorder) -> Iterator[Probe]:
    """This process is probed: at a step in which every stage is dosed."""
    before = observing.kind, span_api.begin_span, span_api.on_step, decorate.dosed
    probing.start(recorder.run_dir, Design(("rollout", "env", "train"), 0.1, 1).text())
    delays = probing._delays
    assert delays is not None
    delays.steps._numbers[0] -= EARLIER_NS
    delays.design = Always(delays.design.stages, 0.1, 1)
    delays.steps.publish(7)
    yield Probe(delays, recorder)
    probing._delays = None
    observing.kind, span_api.begin_span, span_api.on_step, decorate.dosed = before


def hooked(functions: dict[str, Callable[..., Any]], **stages: Any) -> SimpleNamespace:
    """Functions with hooks on them: `name=stage`, or `name=Hook(...)`."""
    owner = SimpleNamespace(**functions)
    for name, stage in stages.items():
        hook = stage if isinstance(stage, Hook) else Hook(f"mod:{name}", stage)
        Patch(owner, name, Observer(hook))
    return owner


def busy(seconds: float = WORK_S) -> None:
    """Works that long, by the clock that doses go by."""
    time.sleep(seconds)


async def busy_task() -> None:
    """So does a coroutine."""
    await asyncio.sleep(WORK_S)


def test_a_call_is_stretched_by_its_dose_within_its_span(probe: Probe) -> None:
    owner = hooked({"generate": lambda: busy() or 5}, generate="rollout")
    assert owner.generate() == 5
    given = probe.slept()["rollout"]
    assert given >= 0.4 * WORK_S
    assert probe.spans()["rollout"] >= WORK_S + given


def test_only_what_the_step_doses_is_delayed(probe: Probe) -> None:
    """A stage may be decided by call; and a budget that has yet to begin affords nothing."""
    decided = Hook("mod:work", lambda call: call.argument("stage"), stages=("rollout", "env"))
    functions = {"work": lambda stage: busy(), "score": busy, "train": busy}
    owner = hooked(functions, work=decided, score="reward", train="train")
    for stage in ("rollout", "other", None):
        owner.work(stage)
    owner.score()  # is not probed
    assert set(probe.slept()) == {"rollout"}
    probe.delays.steps._numbers[0] += 2 * EARLIER_NS
    owner.train()
    assert probe.slept()["train"] == 0
    probe.delays.steps.publish(8)  # no stage is dosed there
    owner.work("env")
    assert set(probe.slept()) == {"rollout", "train"}


def test_a_hooked_step_is_published(probe: Probe) -> None:
    steps = Hook("mod:step", "step", step=lambda call: call.argument("number"))
    owner = hooked({"step": lambda number: probe.delays.steps.place()}, step=steps)
    assert [owner.step(number) for number in (7, 9)] == [0, 2]  # 7 was the first


def test_only_the_outer_call_of_a_stage_is_dosed_and_only_for_its_own_time(probe: Probe) -> None:
    def episode() -> None:
        busy()
        owner.engine()
        owner.tool()

    functions = {"episode": episode, "engine": busy, "tool": lambda: busy(4 * WORK_S)}
    owner = hooked(functions, episode="rollout", engine="rollout", tool="env")
    began = time.perf_counter()
    owner.episode()
    lasted_s = time.perf_counter() - began
    summed = "SELECT counter, sum(value) FROM samples WHERE counter LIKE '%worked' GROUP BY 1"
    worked = dict(probe.rows(summed))
    assert worked["probe/rollout/worked"] >= 2 * WORK_S
    assert worked["probe/env/worked"] >= 4 * WORK_S
    assert sum(worked.values()) <= lasted_s - sum(probe.slept().values())  # nothing counts twice


def test_a_coroutine_is_delayed_while_others_go_on(probe: Probe) -> None:
    order = []

    async def tool() -> None:
        await asyncio.sleep(WORK_S)
        order.append("worked")

    async def other() -> None:
        while "worked" not in order:
            await asyncio.sleep(0)  # by turns of the loop: the delay is a few milliseconds
        order.append("other")

    async def both() -> None:
        async def call() -> None:
            await owner.tool()
            order.append("returned")

        await asyncio.gather(call(), other())

    owner = hooked({"tool": tool}, tool="env")
    asyncio.run(both())
    assert order == ["worked", "other", "returned"]
    assert probe.slept()["env"] > 0


def test_what_a_call_hands_to_a_thread_is_part_of_it(probe: Probe) -> None:
    async def receive() -> None:
        await asyncio.to_thread(owner.fetch)

    owner = hooked({"receive": receive, "fetch": busy}, receive="train", fetch="train")
    asyncio.run(owner.receive())
    assert probe.sleeps() == 1


def test_what_outlives_the_call_that_began_it_is_a_stay_of_its_own(probe: Probe) -> None:
    async def background() -> None:
        await owner.work()

    async def begin() -> Any:
        return asyncio.create_task(background())

    async def main() -> None:
        await (await owner.begin())

    owner = hooked({"begin": begin, "work": busy_task}, begin="rollout", work="rollout")
    asyncio.run(main())
    assert probe.slept()["rollout"] >= 0.4 * WORK_S / 2


def test_a_call_that_raises_or_is_cancelled_gets_no_dose_and_ends_its_span(probe: Probe) -> None:
    def broken() -> None:
        busy()
        raise LookupError("as it was")

    async def endless() -> None:
        await asyncio.sleep(100)

    async def tool() -> None:
        busy(0.1)

    async def cancelled(name: str, within_s: float) -> None:
        task = asyncio.ensure_future(getattr(owner, name)())
        await asyncio.sleep(0)
        await asyncio.sleep(within_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    functions = {"broken": broken, "endless": endless, "tool": tool}
    owner = hooked(functions, broken="rollout", endless="env", tool="train")
    with pytest.raises(LookupError, match="as it was"):
        owner.broken()
    asyncio.run(cancelled("endless", WORK_S))
    assert probe.slept() == {}
    assert set(probe.spans()) == {"rollout", "env"}
    assert owner.broken.__name__ == "broken"
    asyncio.run(cancelled("tool", 0.001))  # the work is done, it sleeps
    assert set(probe.spans()) == {"rollout", "env", "train"}


def test_items_are_delayed_one_by_one_and_whole_iterations_are_not(probe: Probe) -> None:
    def weights() -> Iterator[int]:
        for n in range(3):
            busy()
            yield n

    owner = hooked(
        {"items": weights, "whole": weights},
        items="rollout",
        whole=Hook("mod:whole", "env", per_item=False),
    )
    assert list(owner.items()) == list(owner.whole()) == [0, 1, 2]
    assert set(probe.slept()) == {"rollout"}
    assert probe.problems().keys() == {"mod:whole"}


def test_doses_may_be_given_elsewhere_than_the_span_ends(probe: Probe) -> None:
    def loop() -> None:
        for _ in range(3):
            owner.iterate()

    owner = hooked(
        {"loop": loop, "iterate": busy},
        loop=Hook("mod:loop", "rollout", dose=""),
        iterate=Hook("mod:iterate", dose="rollout"),
    )
    owner.loop()
    assert probe.rows("SELECT count(*) FROM spans") == [1]
    assert 0 < probe.sleeps() <= 3  # one that lasted longer than it should stands for the next
    assert probe.spans()["rollout"] >= 3 * WORK_S * 1.4


def test_spans_of_the_api_are_delayed_too(probe: Probe) -> None:
    @rltrace.span("train")
    def update() -> str:
        busy()
        return "done"

    @rltrace.span("env")
    async def tool() -> str:
        await asyncio.sleep(WORK_S)
        return "done"

    with rltrace.span("rollout") as span:
        busy()
        span.set(tokens=7)
    assert update() == asyncio.run(tool()) == "done"
    given = probe.slept()
    assert set(given) == {"rollout", "train", "env"}
    assert min(given.values()) >= 0.4 * WORK_S


def test_a_with_block_inside_of_a_coroutine_is_not_delayed_and_that_is_said(probe: Probe) -> None:
    async def loop() -> None:
        with rltrace.span("rollout"):
            await asyncio.sleep(WORK_S)
        async with rltrace.span("env"):
            await asyncio.sleep(WORK_S)

    asyncio.run(loop())
    assert set(probe.slept()) == {"env"}
    assert "async with" in probe.problems().pop("rollout")
    assert probe.problems().keys() == {"rollout"}


def test_short_calls_add_up_to_doses_worth_a_sleep(probe: Probe) -> None:
    owner = hooked({"tick": lambda: busy(0.001)}, tick="rollout")
    for _ in range(60):
        owner.tick()
    (worked,) = probe.rows("SELECT sum(value) FROM samples WHERE counter = 'probe/rollout/worked'")
    assert probe.sleeps() < 40
    assert probe.slept()["rollout"] > 0.3 * worked  # a sleep may last longer than it should


def test_calls_at_once_are_paid_for_once(probe: Probe) -> None:
    """A hundred tools that are slow at the same time make a step no longer than one does."""

    async def main() -> None:
        await asyncio.gather(*(owner.tool() for _ in range(100)))

    # A dose of 0.4 costs 8 ms of the 28 that these calls take, and one for each call 800 ms: the
    # last 2 s or more afford 200 ms.
    probe.delays.steps._numbers[0] += EARLIER_NS - 100 * round(WORK_S * 1e9)
    owner = hooked({"tool": busy_task}, tool="env")
    asyncio.run(main())
    (given,) = probe.rows(
        "SELECT avg((value > 0)::INT) FROM samples WHERE counter LIKE '%/env/slept'"
    )
    assert given > 0.9


def test_calls_of_which_some_are_timed_are_begun_and_dosed_once(probe: Probe) -> None:
    results = []
    hook = Hook("mod:generate", "rollout", after=lambda call: results.append(call.result))
    owner = hooked({"generate": lambda: busy(0.005) or 5}, generate=hook)
    assert [owner.generate() for _ in range(20)] == results == [5] * 20
    assert probe.rows("SELECT count(*) FROM spans WHERE end_ns > 0") == [20]
    assert probe.slept()["rollout"] > 0.3 * 20 * 0.005
