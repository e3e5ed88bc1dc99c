"""A step that does not end is a hang by the measure of the usual ones, however it was ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.analysis import ALARM, summarize
from rltrace.testing.inside.trace import Stage
from rltrace.testing.made import at, process, run_of
from tests.analysis.health.jobs import health_of, kinds, steps


def test_a_step_that_never_ends_is_a_hang_by_the_measure_of_the_usual_ones(tmp_path: Path) -> None:
    driver = process("driver", *steps(*[10] * 6), (("step", 6), 60, -1), (Stage.WAIT, 60, -1))
    hung = health_of(run_of(tmp_path, driver, end_real_ns=at(160)))
    assert kinds(hung) == [("hang", ALARM)]
    going_on = health_of(run_of(tmp_path / "on", driver, end_real_ns=at(75)))
    assert going_on.well


SIGNALLED: dict[str, Any] = {"exit_code": 130, "signals": [2]}


@pytest.mark.parametrize(
    ("meta", "spans"),
    [
        (SIGNALLED, [(Stage.REWARD, 60, 185)]),  # Ctrl-C has ended it
        ({"exit_code": 124}, [(Stage.REWARD, 60, 185)]),  # `timeout -s INT`
        ({"exit_code": 137}, [(Stage.REWARD, 60, -1)]),
        ({"exit_code": 143}, [(Stage.REWARD, 60, -1)]),
        ({"exit_code": 137}, []),
    ],
)
def test_a_hang_is_one_however_it_was_ended(
    tmp_path: Path, meta: dict[str, Any], spans: list[tuple[Any, ...]]
) -> None:
    driver = process("driver", *steps(*[10] * 6), (("step", 6), 60, -1), *spans)
    found = health_of(run_of(tmp_path, driver, end_real_ns=at(187), **meta)).alarms
    (hang,) = (alarm for alarm in found if alarm.kind == "hang")
    assert hang.severity == ALARM
    assert "step 6 had been in progress for 13 times the usual step" in hang.says
    assert ("of it in “reward”" in hang.says) == bool(spans)


def test_a_short_hang_that_ctrl_c_ended_is_seen_and_a_short_end_is_none(tmp_path: Path) -> None:
    usual, begun = [0.1] * 8, (("step", 8), 0.8, -1)
    hung = process("driver", *steps(*usual), begun, (Stage.REWARD, 0.8, 8))
    found = health_of(run_of(tmp_path, hung, end_real_ns=at(8.2), **SIGNALLED))
    assert kinds(found)[0] == ("hang", ALARM)
    assert "7.2 s of it in “reward”" in found.alarms[0].says
    for n, stage in enumerate([Stage.REWARD, Stage.EVAL]):  # at work, or at what takes long
        ends_s = 1 if stage is Stage.REWARD else 8
        driver = process("driver", *steps(*usual), begun, (stage, 0.8, ends_s))
        assert health_of(run_of(tmp_path / str(n), driver, end_real_ns=at(9), **SIGNALLED)).well


@pytest.mark.parametrize(("code", "asked"), [(137, []), (130, [2]), (0, [])])
@pytest.mark.parametrize(("open_s", "stuck"), [(0.8, False), (4, False), (40, True)])
def test_a_job_of_short_steps_hangs_by_seconds_too(
    tmp_path: Path, open_s: float, stuck: bool, code: int, asked: list[int]
) -> None:
    spans = (("step", 8), 0.4, -1), (Stage.REWARD, 0.4, -1)
    driver = process("driver", *steps(*[0.05] * 8), *spans)
    ended = {"end_real_ns": at(0.4 + open_s), "exit_code": code, "signals": asked}
    found = health_of(run_of(tmp_path, driver, **ended))
    assert (("hang", ALARM) in kinds(found)) == stuck


@pytest.mark.parametrize(("until_s", "stuck"), [(20, False), (60, True)])
def test_a_first_step_that_ctrl_c_ended_while_stuck(
    tmp_path: Path, until_s: float, stuck: bool
) -> None:
    spans = [(("step", 0), 0, -1), (Stage.DATA, 0, 5), (Stage.ROLLOUT, 5, until_s)]
    driver = process("driver", *spans)
    found = health_of(run_of(tmp_path, driver, end_real_ns=at(until_s + 1), **SIGNALLED))
    assert (("hang", ALARM) in kinds(found)) == stuck
    if stuck:
        assert "stuck in “rollout”" in found.alarms[0].says


def test_few_steps_tell_a_hang_by_the_longest(tmp_path: Path) -> None:
    driver = process("driver", *steps(30, 10), (("step", 2), 40, -1))
    assert kinds(health_of(run_of(tmp_path, driver, end_real_ns=at(131)))) == [("hang", ALARM)]
    assert health_of(run_of(tmp_path / "on", driver, end_real_ns=at(129))).well


@pytest.mark.parametrize(
    ("worked_s", "until_s", "stuck"),
    [
        (5, 25, False),  # nothing for 20 s may be anything
        (5, 40, True),
        (20, 79, False),
        (20, 81, True),
    ],
)
def test_a_first_step_in_which_nothing_happens_any_more_is_stuck(
    tmp_path: Path, worked_s: float, until_s: float, stuck: bool
) -> None:
    spans = [(("step", 0), 0, -1), (Stage.DATA, 0, worked_s), (Stage.ROLLOUT, worked_s, -1)]
    found = summarize(
        run_of(tmp_path, process("driver", *spans), end_real_ns=at(until_s)), predict=False
    )
    assert kinds(found.health) == ([("hang", ALARM)] if stuck else [])
    if stuck:
        says = f"had not ended after {until_s} s, and for the last {until_s - worked_s} s nothing"
        assert says in found.health.alarms[0].says
        assert "stuck in “rollout”" in found.health.alarms[0].says
    assert "step 0 was begun and has no end" in found.verdict.because
    assert "where that step still works" in " ".join(found.verdict.would_tell)
