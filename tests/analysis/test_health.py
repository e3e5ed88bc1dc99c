"""Alarms come where something is wrong, and not where the job is only noisy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.analysis.health import ALARM, NOTE, Health
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


def test_slow_first_steps_of_a_short_run_are_no_stall(tmp_path: Path) -> None:
    """Below five steps none is left out as warm-up, and the first is slow all the same."""
    assert health_of(run_of(tmp_path, process("driver", *steps(60, 10, 10, 10)))).alarms == ()


def test_a_step_that_never_ends_is_a_hang_by_the_measure_of_the_usual_ones(tmp_path: Path) -> None:
    driver = process("driver", *steps(*[10] * 6), (("step", 6), 60, -1), (Stage.WAIT, 60, -1))
    hung = health_of(run_of(tmp_path, driver, end_real_ns=at(160)))
    assert kinds(hung) == [("hang", ALARM)]
    going_on = health_of(run_of(tmp_path / "on", driver, end_real_ns=at(75)))
    assert going_on.well


def test_a_process_that_fell_silent_while_the_job_went_on(tmp_path: Path) -> None:
    driver = process("driver", *steps(*[10] * 12))
    worker = process("rollout", (Stage.ROLLOUT, 0, 5), (Stage.ROLLOUT, 20, -1))
    waits = process("reward", (Stage.REWARD, 0, 5), (Stage.WAIT, 5, -1))
    found = health_of(run_of(tmp_path, driver, worker, waits))
    assert kinds(found) == [("lost process", ALARM)]
    assert "1 of role rollout" in found.alarms[0].says


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
