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
from rltrace.hooks import decorate, probing
from rltrace.testing.inside.hooks import (
    Delays,
    Design,
    Hook,
    Observer,
    Patch,
    Recorder,
    observing,
    span_api,
)

WORK_S = 0.02
EARLIER_NS = 3600 * 10**9
"""A probe that began an hour ago has a budget for whatever a test does."""


class Always(Design):
    """Doses every stage at each step up to the seventh."""

    __slots__ = ()

    def doses(self, place: int) -> dict[str, float]:
        return dict.fromkeys(self.stages, self.dose) if place < 1 else {}


@pytest.fixture
def probed(recorder: Recorder) -> Iterator[Delays]:
    """This process is probed: at a step in which every stage is dosed."""
    before = observing.kind, span_api.begin_span, span_api.on_step, decorate.dosed
    probing.start(recorder.run_dir, Design(("rollout", "env", "train"), 0.1, 1).text())
    delays = probing._delays
    assert delays is not None
    delays.steps._numbers[0] -= EARLIER_NS
    delays.design = Always(delays.design.stages, 0.1, 1)
    delays.steps.publish(7)
    yield delays
    probing._delays = None
    observing.kind, span_api.begin_span, span_api.on_step, decorate.dosed = before


def slept(recorder: Recorder) -> dict[str, float]:
    """Seconds slept by stage."""
    rows = rltrace.open_run(Path(recorder.run_dir)).sql(
        "select split_part(counter, '/', 2), sum(value) from samples "
        "where counter like 'probe/%/slept' group by 1"
    )
    return dict(rows.fetchall())


def spans(recorder: Recorder) -> dict[str, float]:
    """Seconds of ended spans, by stage."""
    rows = rltrace.open_run(Path(recorder.run_dir)).sql(
        "select stage, sum(end_ns - start_ns) / 1e9 from spans where end_ns > 0 group by 1"
    )
    return dict(rows.fetchall())


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


def test_a_call_is_stretched_by_its_dose_within_its_span(
    probed: Delays, recorder: Recorder
) -> None:
    owner = hooked({"generate": lambda: busy() or 5}, generate="rollout")
    assert owner.generate() == 5
    given = slept(recorder)["rollout"]
    assert given >= 0.4 * WORK_S
    assert spans(recorder)["rollout"] >= WORK_S + given


def test_a_stage_that_is_decided_by_call_is_delayed_by_call(
    probed: Delays, recorder: Recorder
) -> None:
    decided = Hook("mod:work", lambda call: call.argument("stage"), stages=("rollout", "env"))
    owner = hooked({"work": lambda stage: busy()}, work=decided)
    owner.work("rollout")
    owner.work("other")
    owner.work(None)
    assert set(slept(recorder)) == {"rollout"}


def test_a_hooked_step_is_published(probed: Delays, recorder: Recorder) -> None:
    steps = Hook("mod:step", "step", step=lambda call: call.argument("number"))
    owner = hooked({"step": lambda number: probed.steps.place()}, step=steps)
    assert [owner.step(number) for number in (7, 9)] == [0, 2]  # 7 was the first


def test_only_the_outer_call_of_a_stage_is_dosed_and_only_for_its_own_time(
    probed: Delays, recorder: Recorder
) -> None:
    def episode() -> None:
        busy()
        owner.engine()
        owner.tool()

    functions = {"episode": episode, "engine": busy, "tool": lambda: busy(4 * WORK_S)}
    owner = hooked(functions, episode="rollout", engine="rollout", tool="env")
    began = time.perf_counter()
    owner.episode()
    lasted_s = time.perf_counter() - began
    worked = dict(
        rltrace.open_run(Path(recorder.run_dir))
        .sql("select counter, sum(value) from samples where counter like '%worked' group by 1")
        .fetchall()
    )
    assert worked["probe/rollout/worked"] >= 2 * WORK_S
    assert worked["probe/env/worked"] >= 4 * WORK_S
    assert sum(worked.values()) <= lasted_s - sum(slept(recorder).values())  # nothing counts twice


def test_a_coroutine_is_delayed_while_others_go_on(probed: Delays, recorder: Recorder) -> None:
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
    assert slept(recorder)["env"] > 0


def test_what_a_call_hands_to_a_thread_is_part_of_it(probed: Delays, recorder: Recorder) -> None:
    async def receive() -> None:
        await asyncio.to_thread(owner.fetch)

    owner = hooked({"receive": receive, "fetch": busy}, receive="train", fetch="train")
    asyncio.run(owner.receive())
    run = rltrace.open_run(Path(recorder.run_dir))
    assert run.sql("select count(*) from samples where counter like '%slept'").fetchall() == [(1,)]


def test_what_outlives_the_call_that_began_it_is_a_stay_of_its_own(
    probed: Delays, recorder: Recorder
) -> None:
    async def background() -> None:
        await owner.work()

    async def begin() -> Any:
        return asyncio.create_task(background())

    async def work() -> None:
        await asyncio.sleep(WORK_S)

    async def main() -> None:
        await (await owner.begin())

    owner = hooked({"begin": begin, "work": work}, begin="rollout", work="rollout")
    asyncio.run(main())
    assert slept(recorder)["rollout"] >= 0.4 * WORK_S / 2


def test_a_call_that_raises_or_is_cancelled_gets_no_dose_and_ends_its_span(
    probed: Delays, recorder: Recorder
) -> None:
    def broken() -> None:
        busy()
        raise LookupError("as it was")

    async def cancelled() -> None:
        task = asyncio.ensure_future(owner.endless())
        await asyncio.sleep(WORK_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def endless() -> None:
        await asyncio.sleep(100)

    owner = hooked({"broken": broken, "endless": endless}, broken="rollout", endless="env")
    with pytest.raises(LookupError, match="as it was"):
        owner.broken()
    asyncio.run(cancelled())
    assert slept(recorder) == {}
    assert set(spans(recorder)) == {"rollout", "env"}
    assert owner.broken.__name__ == "broken"


def test_a_call_that_is_cancelled_in_its_dose_is_cancelled(
    probed: Delays, recorder: Recorder
) -> None:
    async def tool() -> None:
        busy(0.1)

    async def main() -> None:
        task = asyncio.ensure_future(owner.tool())
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)  # the work is done, it sleeps
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    owner = hooked({"tool": tool}, tool="env")
    asyncio.run(main())
    assert set(spans(recorder)) == {"env"}


def test_items_are_delayed_one_by_one_and_whole_iterations_are_not(
    probed: Delays, recorder: Recorder
) -> None:
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
    assert set(slept(recorder)) == {"rollout"}
    said = {p["target"]: p["detail"] for p in problems(recorder)}
    assert said == {"mod:whole": "a whole iteration cannot be delayed"}


def problems(recorder: Recorder) -> list[dict[str, Any]]:
    found = rltrace.open_run(Path(recorder.run_dir)).problems
    return [problem for problem in found if problem["what"] == "not-probed"]


def test_doses_may_be_given_elsewhere_than_the_span_ends(
    probed: Delays, recorder: Recorder
) -> None:
    def loop() -> None:
        for _ in range(3):
            owner.iterate()

    owner = hooked(
        {"loop": loop, "iterate": busy},
        loop=Hook("mod:loop", "rollout", dose=""),
        iterate=Hook("mod:iterate", dose="rollout"),
    )
    owner.loop()
    run = rltrace.open_run(Path(recorder.run_dir))
    assert run.sql("select count(*) from spans").fetchall() == [(1,)]
    assert run.sql("select count(*) from samples where counter like '%slept'").fetchall() == [(3,)]
    assert spans(recorder)["rollout"] >= 3 * WORK_S * 1.4


def test_spans_of_the_api_are_delayed_too(probed: Delays, recorder: Recorder) -> None:
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
    given = slept(recorder)
    assert set(given) == {"rollout", "train", "env"}
    assert min(given.values()) >= 0.4 * WORK_S


def test_a_with_block_inside_of_a_coroutine_is_not_delayed_and_that_is_said(
    probed: Delays, recorder: Recorder
) -> None:
    async def loop() -> None:
        with rltrace.span("rollout"):
            await asyncio.sleep(WORK_S)
        async with rltrace.span("env"):
            await asyncio.sleep(WORK_S)

    asyncio.run(loop())
    assert set(slept(recorder)) == {"env"}
    assert [(p["target"], "async with" in p["detail"]) for p in problems(recorder)] == [
        ("rollout", True)
    ]


def test_short_calls_add_up_to_doses_worth_a_sleep(probed: Delays, recorder: Recorder) -> None:
    owner = hooked({"tick": lambda: busy(0.001)}, tick="rollout")
    for _ in range(60):
        owner.tick()
    run = rltrace.open_run(Path(recorder.run_dir))
    sleeps, given, worked = run.sql(
        "select count(*) filter (counter like '%slept'), "
        "sum(value) filter (counter like '%slept'), sum(value) filter (counter like '%worked') "
        "from samples where counter like 'probe/rollout/%'"
    ).fetchall()[0]
    assert sleeps < 40
    assert given == pytest.approx(0.4 * worked, rel=0.25)


def test_the_budget_is_kept(probed: Delays, recorder: Recorder) -> None:
    probed.steps._numbers[0] += 2 * EARLIER_NS  # it has yet to begin: nothing can be afforded
    owner = hooked({"generate": busy}, generate="rollout")
    owner.generate()
    assert slept(recorder) == {"rollout": 0}


def test_calls_at_once_are_paid_for_once(probed: Delays, recorder: Recorder) -> None:
    """A hundred tools that are slow at the same time make a step no longer than one does."""

    async def tool() -> None:
        await asyncio.sleep(WORK_S)

    async def main() -> None:
        await asyncio.gather(*(owner.tool() for _ in range(100)))

    # A dose of 0.4 costs 8 ms of the 28 that these calls take, and one for each call 800 ms: the
    # last 2 s or more afford 200 ms.
    probed.steps._numbers[0] += EARLIER_NS - 100 * round(WORK_S * 1e9)
    owner = hooked({"tool": tool}, tool="env")
    asyncio.run(main())
    rows = rltrace.open_run(Path(recorder.run_dir)).sql(
        "select count(*) filter (value > 0), count(*) from samples where counter like '%/env/slept'"
    )
    given, asked = rows.fetchall()[0]
    assert given > 0.9 * asked


def test_other_steps_and_stages_are_left_alone(probed: Delays, recorder: Recorder) -> None:
    owner = hooked({"score": busy, "generate": busy}, score="reward", generate="rollout")
    owner.score()  # is not probed
    probed.steps.publish(8)  # no stage is dosed there
    owner.generate()
    assert slept(recorder) == {}
