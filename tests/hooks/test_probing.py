"""A probe delays stages by the doses that it drew, and changes nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rltrace
from rltrace.hooks import decorate, observing, probing, span_api
from rltrace.hooks.delaying import Delays
from rltrace.hooks.doses import BLOCK, DEFAULT_STAGES, STAGES, Design
from rltrace.hooks.hook import Hook
from rltrace.hooks.observing import Observer
from rltrace.hooks.recorder import Recorder
from rltrace.hooks.step_file import StepFile
from rltrace.hooks.wrapping import Patch
from rltrace.trace.vocabulary import Stage
from tests.hooks.conftest import WRAP, clean_environment

WORK_S = 0.02
EARLIER_NS = 3600 * 10**9
"""A probe that began an hour ago has a budget for whatever a test does."""


def dosed_steps(design: Design, stage: str, count: int) -> list[int]:
    return [place for place in range(count) if stage in design.doses(place)]


# --- the design -----------------------------------------------------------------------------------


def test_each_stage_is_dosed_once_in_every_block_after_the_first() -> None:
    design = Design(STAGES, 0.05, seed=3)
    for stage in STAGES:
        places = dosed_steps(design, stage, 100 * BLOCK)
        assert [place // BLOCK for place in places] == list(range(1, 100))
        assert {place % BLOCK for place in places} == set(range(BLOCK))
    given = [dose for place in range(BLOCK, 100 * BLOCK) for dose in design.doses(place).values()]
    assert sum(given) / (99 * BLOCK) / len(STAGES) == pytest.approx(design.budget)


def test_stages_and_seeds_draw_for_themselves() -> None:
    design, other = Design((), 0.05, seed=3), Design((), 0.05, seed=4)
    drawn = {stage: tuple(dosed_steps(design, stage, 400)) for stage in DEFAULT_STAGES}
    assert len(set(drawn.values())) == len(DEFAULT_STAGES)
    assert dosed_steps(other, "train", 400) != dosed_steps(design, "train", 400)
    together = set(drawn["rollout"]) & set(drawn["train"])
    assert 10 < len(together) < 40  # of 99: a quarter


def test_a_design_is_the_same_in_the_process_that_reads_it() -> None:
    design = Design(("train", "rollout"), 0.1, seed=12)
    again = Design.of(design.text())
    assert [again.doses(n) for n in range(400)] == [design.doses(n) for n in range(400)]


@pytest.mark.parametrize(
    ("stages", "budget", "said"),
    [(("wait",), 0.05, "'wait' is none"), ((), 0.2, "at most 12.5 %"), ((), 0.0, "more than 0 %")],
)
def test_a_design_that_cannot_be_is_refused(
    stages: tuple[str, ...], budget: float, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Design(stages, budget, 1)


# --- doses in a process ---------------------------------------------------------------------------


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
    import time

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
    owner.episode()
    worked = dict(
        rltrace.open_run(Path(recorder.run_dir))
        .sql("select counter, sum(value) from samples where counter like '%worked' group by 1")
        .fetchall()
    )
    assert 2 * WORK_S <= worked["probe/rollout/worked"] < 4 * WORK_S  # the tool's is not in it
    assert worked["probe/env/worked"] >= 4 * WORK_S


def test_a_coroutine_is_delayed_while_others_go_on(probed: Delays, recorder: Recorder) -> None:
    order = []

    async def tool() -> None:
        await asyncio.sleep(WORK_S)
        order.append("worked")

    async def other() -> None:
        while "worked" not in order:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)
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
    probed.steps._numbers[0] += EARLIER_NS  # it has just begun: nothing can be afforded
    owner = hooked({"generate": busy}, generate="rollout")
    owner.generate()
    assert slept(recorder) == {"rollout": 0}


def test_calls_at_once_are_paid_for_once(probed: Delays, recorder: Recorder) -> None:
    """A hundred tools that are slow at the same time make a step no longer than one does."""

    async def tool() -> None:
        await asyncio.sleep(WORK_S)

    async def main() -> None:
        await asyncio.gather(*(owner.tool() for _ in range(100)))

    # A dose of 0.4 costs 8 ms of the 28 that these calls take: 10 % of the last 100 ms or more.
    probed.steps._numbers[0] += EARLIER_NS - 20 * round(WORK_S * 1e9)
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


def test_no_step_no_dose(tmp_path: Path) -> None:
    steps = StepFile(str(tmp_path))
    assert steps.place() == -1
    steps.publish(40)
    steps.publish(42)
    assert StepFile(str(tmp_path)).place() == 2  # another process


def test_a_stage_of_the_vocabulary_can_be_delayed_or_is_no_work() -> None:
    assert {stage.name.lower() for stage in Stage} - set(STAGES) == {"wait", "other", "step"}


# --- jobs -----------------------------------------------------------------------------------------

ROLLOUT = """
import sys, time, rltrace
for line in sys.stdin:
    with rltrace.span("rollout"):
        time.sleep(0.02)
    print("done", flush=True)
"""
LOOP = f"""
import subprocess, sys, time, rltrace
child = subprocess.Popen(
    [sys.executable, "-c", {ROLLOUT!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
for number in range(100, 124):
    rltrace.step(number)
    child.stdin.write("go\\n")
    child.stdin.flush()
    child.stdout.readline()
    with rltrace.span("train"):
        time.sleep(0.02)
child.stdin.close()
child.wait()
print([m for m in sys.modules if m.startswith("rltrace.hooks.prob")])
"""


def wrapped(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    script, run = folder / "loop.py", folder / "run"
    script.write_text(LOOP)
    done = subprocess.run(
        [*WRAP, "--out", str(run), *options, "--", sys.executable, str(script)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done, run


def test_all_processes_dose_the_same_steps(tmp_path: Path) -> None:
    done, path = wrapped(tmp_path, "--probe", "rollout", "train", "--probe-seed", "5")
    assert "at most 5 % of the job's time (seed 5)" in done.stderr
    run = rltrace.open_run(path)
    assert run.meta["settings"]["probe"]["stages"] == ["rollout", "train"]
    design = Design(("rollout", "train"), 0.05, 5)
    for stage in design.stages:
        rows = run.sql(
            "select distinct k.step from samples s join steps k "
            "on s.time_ns between k.start_ns and k.end_ns "
            f"where counter = 'probe/{stage}/slept' and value > 0 order by 1"
        ).fetchall()
        assert [step - 100 for (step,) in rows] == dosed_steps(design, stage, 24)
    slept_s = run.sql(
        "select sum(value) from samples where counter like 'probe/%/slept' group by process"
    ).fetchall()
    lasted_s = run.sql("select sum(seconds) from steps").fetchall()[0][0]
    assert len(slept_s) == 2
    assert all(total <= 0.05 * lasted_s for (total,) in slept_s)


def test_a_run_that_is_not_probed_has_nothing_of_it(tmp_path: Path) -> None:
    done, path = wrapped(tmp_path)
    assert done.stdout.strip() == "[]"
    run = rltrace.open_run(path)
    assert "probe" not in run.meta["settings"]
    found = run.sql("select count(*) from samples where counter like 'probe/%'").fetchall()
    assert found == [(0,)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--probe", "wait"), "'wait' is none of the stages that can be delayed"),
        (("--probe", "--probe-budget", "50%"), "at most 12.5 %, not 50"),
        (("--probe", "--probe-budget", "some"), "a share such as 5% or 0.05, not 'some'"),
        (("--probe-seed", "4"), "go with --probe"),
    ],
)
def test_wrong_options_are_one_sentence(options: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [*WRAP, *options, "--", "true"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
