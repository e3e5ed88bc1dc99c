"""Alarms come where something is wrong, and not where the job is only noisy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.analysis.alarm import ALARM, NOTE
from rltrace.analysis.health import Health
from rltrace.analysis.summary import summarize
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Fate, Outcome, Stage
from tests.analysis.handmade import at, process, rows, run_of


def health_of(run: Run) -> Health:
    return summarize(run).health


def kinds(found: Health) -> list[tuple[str, str]]:
    return [(alarm.kind, alarm.severity) for alarm in found.alarms]


def steps(*lengths_s: float, stage: Stage = Stage.TRAIN) -> list[tuple[Any, ...]]:
    """Steps one after the other, each all of a stage."""
    ends = np.cumsum(lengths_s).tolist()
    spans: list[tuple[Any, ...]] = []
    for n, (length, end) in enumerate(zip(lengths_s, ends, strict=True)):
        spans += [(("step", n), end - length, end), (stage, end - length, end)]
    return spans


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({}, []),
        ({"exit_code": 0}, []),
        ({"exit_code": 1}, [("crash", ALARM)]),
        ({"exit_code": -9}, [("crash", ALARM)]),
        ({"exit_code": 137}, [("crash", ALARM)]),
        ({"exit_code": 130}, [("crash", NOTE)]),
        ({"exit_code": 1, "signals": [2]}, [("crash", NOTE)]),  # Ctrl-C, which it took itself
        ({"exit_code": 1, "signals": [10]}, [("crash", ALARM)]),  # SIGUSR1 asks nobody to end
        ({"exit_code": -15}, [("crash", NOTE)]),
    ],
)
def test_a_job_that_failed_is_no_job_that_somebody_ended(
    tmp_path: Path, meta: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    found = health_of(run_of(tmp_path, process("driver", *steps(*[10] * 6)), **meta))
    assert kinds(found) == expected
    assert found.well == (("crash", ALARM) not in expected)


def test_a_job_that_died_in_its_first_step(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 0, -1), (Stage.ROLLOUT, 0, 3))
    found = health_of(run_of(tmp_path, driver, exit_code=1))
    assert "before its first step was complete" in found.alarms[0].says
    assert not found.well


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "the job failed (exit code 3) in step 0, before its first step was complete"),
        (137, "the job failed (exit code 137, SIGKILL) in step 0, before its first"),
        (-9, "the job failed (signal 9, SIGKILL) in step 0, before its first"),
    ],
)
def test_how_a_job_ended_is_named(tmp_path: Path, code: int, words: str) -> None:
    driver = process("driver", (("step", 0), 0, -1), (Stage.ROLLOUT, 0, 3))
    assert health_of(run_of(tmp_path, driver, exit_code=code)).alarms[0].says.startswith(words)


@pytest.mark.parametrize(
    ("spans", "severity"),
    [(steps(*[10] * 4), NOTE), ([(("step", 0), 0, -1), (Stage.ROLLOUT, 0, 15)], ALARM)],
)
def test_a_job_that_nobody_saw_end(
    tmp_path: Path, spans: list[tuple[Any, ...]], severity: str
) -> None:
    """Its agent wrote down when; `wrap`, which would have said how, was killed too."""
    run = run_of(tmp_path, process("driver", *spans), exit_code=None, end_real_ns=at(41),
                 command_pid=1)  # fmt: skip
    found = health_of(run)
    assert kinds(found) == [("crash", severity)]
    assert "nobody saw how" in found.alarms[0].says


def failing(*failed: int, of: int) -> list[tuple[Any, ...]]:
    """Steps of 10 s, some of which an exception left."""
    spans: list[tuple[Any, ...]] = []
    for n in range(of):
        end = -1 if n in failed else 10 * n + 10
        spans += [(("step", n), 10 * n, end), (Stage.TRAIN, 10 * n, 10 * n + 5)]
    return spans


@pytest.mark.parametrize(
    ("failed", "severity", "words"),
    [
        ((4,), NOTE, "1 of 20 steps (4) failed (ValueError: 4): no figure"),
        ((4, 11), ALARM, "2 of 20 steps (4, 11) failed (ValueError: 4): no figure"),
        ((4, 19), ALARM, "2 of 20 steps (4, 19) failed"),  # the last one, too
    ],
)
def test_steps_that_an_exception_left_are_failed_ones(
    tmp_path: Path, failed: tuple[int, ...], severity: str, words: str
) -> None:
    run = run_of(tmp_path, process("driver", *failing(*failed, of=20)), end_real_ns=at(1000))
    run.problems.extend(
        {"what": "step-failed", "target": str(n), "detail": f"ValueError: {n}"} for n in failed
    )
    found = summarize(run)
    assert found.coverage.problems == ()
    assert kinds(found.health) == [("failed steps", severity)]
    assert words in found.health.alarms[0].says
    assert found.steps.complete == 20 - len(failed)
    assert found.steps.step_s.mean == pytest.approx(10)
    assert found.cascade is not None
    lost = {part.reason: part.seconds for part in found.cascade.seconds}
    assert lost["steps that failed"] == pytest.approx(10 * sum(n < 19 for n in failed))


def test_the_exception_that_a_job_failed_of_is_named(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", *failing(5, of=6)), exit_code=1, end_real_ns=at(1000))
    run.problems.append({"what": "step-failed", "target": "5", "detail": "KeyError: 'x'"})
    found = health_of(run)
    assert kinds(found) == [("crash", ALARM)]
    assert "in step 5 (KeyError: 'x'), after 5 complete steps" in found.alarms[0].says


def test_noise_and_evaluations_are_no_stalls(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    driver = process("driver", *steps(*rng.uniform(8, 14, 20)))
    end = max(span[1] for span in driver.spans) / 1e9 - at(0) / 1e9
    driver.spans += process(
        "driver", (("step", 20), end, end + 90), (Stage.TRAIN, end, end + 10),
        (Stage.EVAL, end + 10, end + 90),
    ).spans  # fmt: skip
    assert health_of(run_of(tmp_path, driver)).alarms == ()


@pytest.mark.parametrize(("longest_s", "severity"), [(35, NOTE), (200, ALARM)])
def test_a_stall_says_when_where_and_what_it_cost(
    tmp_path: Path, longest_s: float, severity: str
) -> None:
    driver = process("driver", *steps(*[10] * 12, longest_s, *[10] * 12))
    found = health_of(run_of(tmp_path, driver))
    assert kinds(found) == [("stall", severity)]
    assert "1 step (12)" in found.alarms[0].says
    assert "in train" in found.alarms[0].says


def test_steps_that_generate_for_several_updates_are_no_stalls(tmp_path: Path) -> None:
    """Every fourth step generates, and takes four times as long; one of them as long again."""
    spans, now = [], 0
    for n in range(40):
        rollout = 0 if n % 4 else 130 if n == 20 else 30
        spans += [
            (("step", n), now, now + rollout + 10),
            (Stage.TRAIN, now + rollout, now + rollout + 10),
        ]
        spans += [(Stage.ROLLOUT, now, now + rollout)] if rollout else []
        now += rollout + 10
    found = health_of(run_of(tmp_path, process("driver", *spans)))
    assert kinds(found) == [("stall", ALARM)]
    assert "1 step (20)" in found.alarms[0].says
    assert "in rollout" in found.alarms[0].says


@pytest.mark.parametrize(("longer_s", "stalls"), [(0.09, []), (0.11, [("stall", ALARM)])])
def test_what_the_scheduler_takes_from_very_short_steps_is_no_stall(
    tmp_path: Path, longer_s: float, stalls: list[tuple[str, str]]
) -> None:
    lengths = [0.002] * 12 + [0.002 + longer_s] + [0.002] * 12
    assert kinds(health_of(run_of(tmp_path, process("driver", *steps(*lengths))))) == stalls


def test_slow_first_steps_of_a_short_run_are_no_stall(tmp_path: Path) -> None:
    """Below five steps none is left out as warm-up, and the first is slow all the same."""
    assert health_of(run_of(tmp_path, process("driver", *steps(60, 10, 10, 10)))).alarms == ()


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
    found = summarize(run_of(tmp_path, process("driver", *spans), end_real_ns=at(until_s)))
    assert kinds(found.health) == ([("hang", ALARM)] if stuck else [])
    if stuck:
        says = f"had not ended after {until_s} s, and for the last {until_s - worked_s} s nothing"
        assert says in found.health.alarms[0].says
        assert "stuck in “rollout”" in found.health.alarms[0].says
    assert "step 0 was begun and has no end" in found.verdict.because
    assert "where that step still works" in " ".join(found.verdict.would_tell)


@pytest.mark.parametrize(
    ("role", "says"), [("rollout", "1 process of role rollout fell"), ("", "1 process fell")]
)
def test_a_process_that_fell_silent_while_the_job_went_on(
    tmp_path: Path, role: str, says: str
) -> None:
    driver = process("driver", *steps(*[10] * 12))
    worker = process(role, (Stage.ROLLOUT, 0, 5), (Stage.ROLLOUT, 20, -1))
    waits = process("reward", (Stage.REWARD, 0, 5), (Stage.WAIT, 5, -1))
    found = health_of(run_of(tmp_path, driver, worker, waits))
    assert kinds(found) == [("lost process", ALARM)]
    assert found.alarms[0].says.startswith(says)


def test_restarts(tmp_path: Path) -> None:
    first = process("learner", *steps(*[10] * 6))
    again = process("learner", (("step", 4), 80, 90), (("step", 5), 90, 100), rank=1)
    found = health_of(run_of(tmp_path, first, again))
    assert ("restart", ALARM) in kinds(found)


def rewarded(path: Path, by_step: list[float], noise: float = 0.0, samples: int = 16) -> Run:
    rng = np.random.default_rng(3)
    driver = process("driver", *steps(*[10] * len(by_step)))
    for n, reward in enumerate(by_step):
        value = reward + noise * rng.standard_normal(samples)
        moment = [10 * n + 5.0] * samples
        rows(driver, "rewards", start_s=moment, end_s=moment, value=value.tolist(),
             trajectory=[1000 * n + i for i in range(samples)], outcome=[0] * samples)  # fmt: skip
    return run_of(path, driver)


RISE = np.linspace(0.1, 0.8, 30).tolist()


@pytest.mark.parametrize(
    ("by_step", "fell_at"),
    [
        (RISE, None),
        ([0.5] * 30, None),
        ([0.5] * 30 + [0.4] * 10, None),  # worse, and no collapse
        (RISE + [0.05] * 10, 30),
        (RISE + [0.05] * 5 + [0.8] * 10, None),  # it came back
        ([-1.0] * 20 + [-5.0] * 10, 20),
        ([-1.0] * 20 + [-5.0] * 10 + [-9.0], 20),
        ([0.8, 0.1], None),
    ],
)
def test_a_collapse_is_a_large_fall_that_stays(
    tmp_path: Path, by_step: list[float], fell_at: int | None
) -> None:
    found = summarize(rewarded(tmp_path, by_step, noise=0.05))
    assert found.reward is not None
    collapse = found.reward.collapse
    if fell_at is None:
        assert collapse is None
        assert found.health.well
    else:
        assert collapse is not None
        assert abs(collapse.step - fell_at) <= 1
        assert kinds(found.health) == [("reward", ALARM)]


def test_noise_alone_never_alarms(tmp_path: Path) -> None:
    run = rewarded(tmp_path, [0.5] * 120, noise=1.0, samples=4)
    found = summarize(run).reward
    assert found is not None
    assert found.collapse is None
    assert found.gain_low < 0 < found.gain_high


def test_the_reward_is_set_against_what_it_cost(tmp_path: Path) -> None:
    run = rewarded(tmp_path, [0.1 * n for n in range(10)])
    run.processes[0].facts["cores"] = 36
    found = summarize(run).reward
    assert found is not None
    assert [point.reward for point in found.points] == pytest.approx([0.1 * n for n in range(10)])
    assert found.device == "core"
    assert found.device_hours == pytest.approx(1)  # 100 s of 36 cores
    assert found.gain_per_device_hour == pytest.approx(1)
    assert found.steps_per_hour == pytest.approx(360)
    assert (found.first, found.last) == (pytest.approx(0.1), pytest.approx(0.8))


def test_figures_that_are_not_finite(tmp_path: Path) -> None:
    driver = process("driver", *steps(*[10] * 6))
    rows(driver, "rewards", start_s=[1, 1], end_s=[2, 2], value=[np.inf, np.nan], outcome=[0, 0])
    rows(driver, "uses", time_s=[3], trajectory=[1], fate=[Fate.TRAINED], tokens=[5],
         sum_w=[np.inf], sum_w_squared=[np.inf])  # fmt: skip
    rows(driver, "samples", time_s=[3, 4], counter=["actor/loss", "queue"], value=[np.nan, np.nan])
    says = " ".join(alarm.says for alarm in health_of(run_of(tmp_path, driver)).alarms)
    assert "samples with infinite importance ratios: 1" in says
    assert "infinite rewards: 1" in says
    assert "actor/loss was NaN or infinite in 1 of 1 reading, first in step 0" in says
    assert "queue" not in says


UNKNOWN = np.array([-1], np.int64).view(np.float64)[0]


@pytest.mark.parametrize(
    ("bad", "value", "outcome", "expected"),
    [
        (range(6, 12), np.nan, Outcome.OK, [("not finite", ALARM)]),
        ([11], np.nan, Outcome.OK, [("not finite", ALARM)]),
        ([3], np.nan, Outcome.OK, [("not finite", NOTE)]),  # it has come back
        (range(6, 12), UNKNOWN, Outcome.OK, []),  # nobody said what the verdict was
        (range(8, 12), np.nan, Outcome.ERROR, []),  # a verdict that failed is none
    ],
)
def test_rewards_that_are_given_as_nan_are_no_unknown_ones(
    tmp_path: Path, bad: Any, value: float, outcome: int, expected: list[tuple[str, str]]
) -> None:
    driver = process("driver", *steps(*[10] * 6))
    places = range(12)
    rows(driver, "rewards", start_s=[5 * n + 1 for n in places], end_s=[5 * n + 2 for n in places],
         trajectory=list(places), value=[value if n in bad else n % 2 for n in places],
         outcome=[outcome if n in bad else Outcome.OK for n in places])  # fmt: skip
    found = health_of(run_of(tmp_path, driver)).alarms
    assert [(alarm.kind, alarm.severity) for alarm in found] == expected
    if expected and len(bad) > 1:
        assert found[0].says == "the reward was NaN in 6 of 12 verdicts, first in step 3"


def logged(path: Path, **by_counter: list[float]) -> Run:
    """A run that logs these figures at the end of its steps, one a step."""
    driver = process("driver", *steps(*[10] * max(map(len, by_counter.values()))))
    for counter, values in by_counter.items():
        rows(driver, "samples", time_s=[10 * n + 10 for n in range(len(values))],
             counter=[counter] * len(values), value=values)  # fmt: skip
    return run_of(path, driver)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5] * 20, []),
        ([0.5] * 15 + [np.nan] * 5, [("not finite", ALARM)]),
        ([0.5] * 10 + [np.inf] + [0.5] * 10, [("not finite", NOTE)]),  # one update was skipped
        ([np.nan, 0.5, 0.5], [("not finite", NOTE)]),  # not known yet
        ([0.5, np.nan] * 10 + [0.5], [("not finite", ALARM)]),
    ],
)
def test_a_loss_that_stays_no_number_forbids_advice_and_one_that_came_back_does_not(
    tmp_path: Path, values: list[float], expected: list[tuple[str, str]]
) -> None:
    found = health_of(logged(tmp_path, **{"actor/pg_loss": values}))
    assert kinds(found) == expected
    assert found.well == (("not finite", ALARM) not in expected)


@pytest.mark.parametrize(
    "counter", ["reward", "critic/rewards/mean", "policy_loss", "actor/grad_norm", "critic/score"]
)
def test_what_the_job_learns_from_is_watched(tmp_path: Path, counter: str) -> None:
    found = health_of(logged(tmp_path, **{counter: [1.0, 1.0, np.nan]}))
    assert [alarm.says for alarm in found.alarms] == [
        f"{counter} was NaN or infinite in 1 of 3 readings, first in step 2"
    ]


@pytest.mark.parametrize(
    "counter",
    ["val-core/math/reward/mean@1", "critic/rewards/std", "response_length", "eval_reward"],
)
def test_what_may_be_no_number_is_no_reason_for_an_alarm(tmp_path: Path, counter: str) -> None:
    assert health_of(logged(tmp_path, **{counter: [np.nan] * 3})).alarms == ()


@pytest.mark.parametrize(("failed", "well"), [(0, True), (5, True), (6, False)])
def test_most_verdicts_fail(tmp_path: Path, failed: int, well: bool) -> None:
    driver = process("driver", *steps(*[10] * 6))
    outcomes = [Outcome.ERROR] * failed + [Outcome.OK] * (10 - failed)
    rows(driver, "rewards", start_s=[1] * 10, end_s=[2] * 10, trajectory=list(range(10)),
         value=[np.nan if o else 1.0 for o in outcomes], outcome=outcomes)  # fmt: skip
    assert health_of(run_of(tmp_path, driver)).well == well


def test_one_step_and_nothing_at_all_are_no_reason_for_an_alarm(tmp_path: Path) -> None:
    assert health_of(run_of(tmp_path / "one", process("driver", *steps(10)))).alarms == ()
    assert health_of(run_of(tmp_path / "none")).alarms == ()
