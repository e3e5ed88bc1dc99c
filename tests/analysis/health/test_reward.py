"""A reward that collapses alarms, and so do NaN and infinity in what a job learns from; noise
alone never does, nor do unknown figures. What a gain in reward has cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.testing.handmade_runs import process, rows, run_of
from rltrace.testing.inside.analysis import ALARM, NOTE, summarize
from rltrace.testing.inside.report import reward_section
from rltrace.testing.inside.trace import Fate, Outcome
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.analysis.health.jobs import health_of, kinds, steps


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
    found = summarize(rewarded(tmp_path, by_step, noise=0.05), predict=False)
    assert found.reward is not None
    collapse = found.reward.collapse
    assert found.health.ok == (fell_at is None)
    assert kinds(found.health) == [("reward", ALARM)] * (fell_at is not None)
    assert (collapse is None) == (fell_at is None)
    assert collapse is None or fell_at is None or abs(collapse.step - fell_at) <= 1


def test_noise_alone_never_alarms(tmp_path: Path) -> None:
    run = rewarded(tmp_path, [0.5] * 120, noise=1.0, samples=4)
    found = summarize(run, predict=False).reward
    assert found is not None
    assert found.collapse is None
    assert found.gain_per_device_hour.low < 0 < found.gain_per_device_hour.high


def test_the_reward_is_set_against_what_it_cost(tmp_path: Path) -> None:
    run = rewarded(tmp_path, [0.1 * n for n in range(10)])
    run.processes[0].facts["cores"] = 36
    found = summarize(run, predict=False).reward
    assert found is not None
    assert [point.reward for point in found.points] == pytest.approx([0.1 * n for n in range(10)])
    assert found.device == "core"
    assert found.device_hours == pytest.approx(1)  # 100 s of 36 cores
    assert found.gain_per_device_hour.value == pytest.approx(1)
    assert found.steps_per_hour == pytest.approx(360)
    assert (found.first_reward, found.last_reward) == (pytest.approx(0.1), pytest.approx(0.8))


@pytest.mark.parametrize(("failed", "well"), [(0, True), (5, True), (6, False)])
def test_most_verdicts_fail(tmp_path: Path, failed: int, well: bool) -> None:
    driver = process("driver", *steps(*[10] * 6))
    outcomes = [Outcome.ERROR] * failed + [Outcome.OK] * (10 - failed)
    rows(driver, "rewards", start_s=[1] * 10, end_s=[2] * 10, trajectory=list(range(10)),
         value=[np.nan if o else 1.0 for o in outcomes], outcome=outcomes)  # fmt: skip
    assert health_of(run_of(tmp_path, driver)).ok == well


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("of_step", [[-1e308] * 12, [1e308, -1e308] * 6, [0.5] * 6 + [-1e308] * 6])
def test_rewards_whose_sum_no_number_holds_are_shown(tmp_path: Path, of_step: list[float]) -> None:
    """Without a warning, and nothing that is no number is taken for a fall or a trend."""
    run = rewarded(tmp_path, of_step)
    summary = summarize(run)
    assert summary.reward is not None
    assert summary.reward.collapse is None
    first, *_ = reward_section(summary.reward, summary.signal).lines
    told = first.removeprefix("Mean reward ").split(" → ")[0]
    assert told in ("not finite", "–", "0.500")


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
    assert found.ok == (("not finite", ALARM) not in expected)


LEARNED_FROM = ("reward", "critic/rewards/mean", "policy_loss", "actor/grad_norm", "critic/score")
OTHER = ("val-core/math/reward/mean@1", "critic/rewards/std", "response_length", "eval_reward")


@pytest.mark.parametrize("counter", LEARNED_FROM + OTHER)
def test_what_the_job_learns_from_is_watched_and_what_may_be_no_number_is_not(
    tmp_path: Path, counter: str
) -> None:
    found = health_of(logged(tmp_path, **{counter: [1.0, 1.0, np.nan]}))
    says = f"{counter} was NaN or infinite in 1 of 3 readings, first in step 2"
    assert [alarm.says for alarm in found.alarms] == [says] * (counter in LEARNED_FROM)
