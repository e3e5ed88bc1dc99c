"""Steps far longer than the others alarm, and those of a job that is only noisy do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rltrace.cli import main
from rltrace.testing.handmade_runs import process, run_of
from rltrace.testing.inside.analysis import (
    ALARM,
    NOTE,
    ROLLOUT,
    Constants,
    RunAnalysis,
    Summary,
    summarize,
    workload_of,
)
from rltrace.testing.inside.report import sentences, stages_section, warnings
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import Stage
from tests.analysis.health.jobs import health_of, kinds, steps
from tests.analysis.walls.walled import first


def test_noise_and_evaluations_and_slow_first_steps_are_no_stalls(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    spans = steps(*rng.uniform(8, 14, 20))
    end = max(span[2] for span in spans)
    spans += [(("step", 20), end, end + 90), (Stage.TRAIN, end, end + 10)]
    spans.append((Stage.EVAL, end + 10, end + 90))
    assert health_of(run_of(tmp_path, process("driver", *spans))).alarms == ()
    # Below five steps none is left out as warm-up, and the first is slow all the same.
    few = run_of(tmp_path / "few", process("driver", *steps(60, 10, 10, 10)))
    assert health_of(few).alarms == ()


@pytest.mark.parametrize(("longest_s", "severity"), [(35, NOTE), (200, ALARM)])
def test_a_stall_says_when_where_and_what_it_cost(
    tmp_path: Path, longest_s: float, severity: str
) -> None:
    driver = process("driver", *steps(*[10] * 12, longest_s, *[10] * 12))
    found = health_of(run_of(tmp_path, driver))
    assert kinds(found) == [("stall", severity)]
    assert "1 step (12)" in found.alarms[0].says
    assert "in train" in found.alarms[0].says


@pytest.mark.parametrize(("longer_s", "stalls"), [(0.09, []), (0.11, [("stall", ALARM)])])
def test_what_the_scheduler_takes_from_very_short_steps_is_no_stall(
    tmp_path: Path, longer_s: float, stalls: list[tuple[str, str]]
) -> None:
    lengths = [0.002] * 12 + [0.002 + longer_s] + [0.002] * 12
    assert kinds(health_of(run_of(tmp_path, process("driver", *steps(*lengths))))) == stalls


STEP = (6.0, 1.0, 3.0)
"""Seconds of generation, verdicts and training in a step."""
STALLED = (6.0, 31.0, 3.0)


def in_turns(path: Path, *steps_s: tuple[float, float, float]) -> Run:
    return run_of(path, process("driver", *spans_in_turns(*steps_s)))


def spans_in_turns(*steps_s: tuple[float, float, float]) -> list[tuple[Any, ...]]:
    spans: list[tuple[Any, ...]] = []
    now = 0.0
    for n, lengths in enumerate(steps_s):
        spans.append((("step", n), now, now + sum(lengths)))
        for stage, seconds in zip((Stage.ROLLOUT, Stage.REWARD, Stage.TRAIN), lengths, strict=True):
            spans.append((stage, now, now + seconds))
            now += seconds
    return [span for span in spans if span[2] > span[1]]


UPDATE = (0.0, 0.0, 1.0)
"""A step that takes its samples from the one before it."""


@pytest.mark.parametrize("generated_for", [2, 3, 5])
def test_of_a_short_run_no_step_that_generates_is_held_against_those_that_do_not(
    tmp_path: Path, generated_for: int
) -> None:
    """Six steps: too few to tell the usual one that generates."""
    lengths = [STEP if n % generated_for == 0 else UPDATE for n in range(6)]
    assert health_of(in_turns(tmp_path, *lengths)).alarms == ()


def test_a_step_that_only_updates_is_held_against_those_that_generate_where_few_do(
    tmp_path: Path,
) -> None:
    lengths = [STEP, STEP, UPDATE, STEP, STEP, (0.0, 0.0, 90.0), STEP, STEP]
    found = health_of(in_turns(tmp_path, *lengths))
    assert kinds(found) == [("stall", ALARM)]
    assert "1 step (5) stalled: 90 s where 10 s is usual" in found.alarms[0].says


@pytest.mark.parametrize(
    ("usual", "other", "says"),
    [
        # Every fourth step generates, and takes longer; one of them by what it generates.
        ((30.0, 0.0, 10.0), (130.0, 0.0, 10.0),
         "140 s where 40 s is usual, most of the difference in rollout"),
        # One is longer by its verdicts more than by what it generates.
        ((12.0, 1.0, 3.0), (30.0, 25.0, 3.0),
         "58 s where 16 s is usual, most of the difference in reward"),
    ],
)  # fmt: skip
def test_what_stalled_a_step_is_told_by_steps_of_its_kind(
    tmp_path: Path, usual: tuple[float, float, float], other: tuple[float, float, float], says: str
) -> None:
    lengths = [usual if n % 4 == 0 else (0.0, 0.0, usual[2]) for n in range(40)]
    lengths[20] = other
    found = health_of(in_turns(tmp_path, *lengths))
    assert kinds(found) == [("stall", ALARM)]
    assert found.alarms[0].says.startswith(f"1 step (20) stalled: {says}")


def test_of_several_stalls_the_mean_is_held_against_one_usual_step(tmp_path: Path) -> None:
    lengths = [STEP, STALLED, STEP, (6.0, 51.0, 3.0), *[STEP] * 9]
    found = health_of(in_turns(tmp_path, *lengths))
    says = "2 steps (1, 3) stalled: 50 s each on average where 10 s is usual"
    assert found.alarms[0].says.startswith(says)


@pytest.mark.parametrize(("goes_on_s", "alarmed"), [(9, []), (40, [("hang", ALARM)])])
def test_a_step_that_goes_on_may_be_one_that_generates(
    tmp_path: Path, goes_on_s: float, alarmed: list[tuple[str, str]]
) -> None:
    """Every fourth step generates and takes 10 s, the others 1 s; the last has not ended."""
    spans = spans_in_turns(*[STEP if n % 4 == 0 else UPDATE for n in range(12)])
    begun = spans[-1][2]
    last = (("step", 12), begun, -1), (Stage.ROLLOUT, begun, begun + goes_on_s)
    run = run_of(tmp_path, process("driver", *spans, *last))
    assert kinds(health_of(run)) == alarmed


def advice(found: Summary) -> list[tuple[str, float]]:
    return [
        (fix.sized, round(fix.goodput_gain.value, 3))
        for fix in found.verdict.fixes
        if fix.goodput_gain
    ]


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """A job of 14 steps that are alike."""
    return summarize(in_turns(tmp_path_factory.mktemp("well"), *[STEP] * 14))


@pytest.mark.parametrize("place", [5, 8, 12])
def test_a_step_that_stalled_changes_neither_the_verdict_nor_the_advice(
    tmp_path: Path, well: Summary, place: int
) -> None:
    """One step of 14 waits two minutes for its verdicts, which would make them the wall."""
    lengths = [STEP] * 14
    lengths[place] = (6.0, 101.0, 3.0)
    run = in_turns(tmp_path / "stalled", *lengths)
    found = summarize(run)
    assert kinds(found.health) == [("stall", ALARM)]
    assert found.health.ok
    assert found.steps.stalled == (place,)
    assert (first(found), found.verdict.confidence) == (ROLLOUT, well.verdict.confidence)
    assert found.verdict.walls[0].cost.share == pytest.approx(0.6)
    assert next(sentences(found)) == next(sentences(well))
    assert advice(found) == advice(well) != []
    assert RunAnalysis(run).health.forbids == ()
    assert workload_of(run)(Constants()).measured_step_s == pytest.approx(10)


def test_many_stalls_in_one_half_of_a_run_leave_the_other_half(tmp_path: Path) -> None:
    lengths = [STEP, STALLED, STEP, STALLED, *[STEP] * 9]
    found = summarize(in_turns(tmp_path / "early", *lengths), predict=False)
    assert (found.steps.stalled, found.steps.steady) == ((1, 3), 9)
    assert first(found) == ROLLOUT
    late = summarize(in_turns(tmp_path / "late", *lengths[::-1]), predict=False)
    assert late.steps.stalled == (9, 11)


def test_the_report_and_every_command_say_the_stall_and_answer_all_the_same(
    tmp_path: Path,
) -> None:
    run = in_turns(tmp_path, *[STEP] * 5, (6.0, 101.0, 3.0), *[STEP] * 8)
    found = summarize(run, predict=False)
    assert any("steps 6 to 13" in line for line in stages_section(found).lines)
    says = "1 step (5) stalled: 110 s where 10 s is usual"
    assert any(one.startswith(says) and "in reward" in one for one in warnings(found))
    assert found.cascade is not None
    lost = {one.reason: one.wall_s for one in found.cascade.wall_clock}
    assert lost["stalls, beyond a usual step"] == pytest.approx(100)
    told = json.loads(asked("report", run.path, "--json"))
    assert (told["health"]["ok"], told["health"]["alarms"][0]["judged_anyway"]) == (True, True)
    assert told["verdict"]["alarms"] == []
    assert told["verdict"]["fixes"]
    assert (told["steps"]["stalled"], told["steps"]["steady"]) == ([5], 8)
    assert [time["steady"] for time in told["steps"]["times"]] == [False] * 6 + [True] * 8
    answer = json.loads(asked("whatif", run.path, "--json"))
    assert answer["alarms"] == []
    assert answer["warnings"][0].startswith(says)
    assert answer["predictions"]
    assert answer["before"]["step_s"] == pytest.approx(10)
    for command in ("whatif", "doctor"):
        assert says in " ".join(asked(command, run.path).split())


def asked(*words: object) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == (words[0] == "doctor"), result.output
    return result.stdout


@pytest.mark.parametrize(
    "steps_s",
    [
        [*[STEP] * 12, (6.0, 401.0, 3.0), STEP],
        [STEP, STALLED, *[STEP] * 5, STALLED, *[STEP] * 5],
        [STEP, STEP, STALLED, STEP, STEP],
        [*[(6.0, 0.0, 3.0)] * 9, (6.0, 30.0, 3.0), *[(6.0, 0.0, 3.0)] * 5],
    ],
    ids=["most of the time", "not few", "too few are left", "only they have verdicts"],
)
def test_where_the_others_are_not_what_the_run_is_the_alarm_stands_in_place_of_the_verdict(
    tmp_path: Path, steps_s: list[tuple[float, float, float]]
) -> None:
    run = in_turns(tmp_path, *steps_s)
    found = summarize(run)
    assert next(sentences(found)).startswith("No advice: steps stalled")
    assert found.steps.stalled == ()
    assert found.verdict.fixes == ()
    assert len(RunAnalysis(run).health.forbids) == 1


def test_stalls_that_cost_little_are_counted(tmp_path: Path) -> None:
    found = summarize(in_turns(tmp_path, *[STEP] * 40, STALLED, *[STEP] * 10), predict=False)
    assert kinds(found.health) == [("stall", NOTE)]
    assert (found.steps.stalled, found.steps.steady) == ((), 51)
