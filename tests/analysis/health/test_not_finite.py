"""NaN and infinity in what a job learns from alarm; unknown figures and others do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.testing.inside.analysis import ALARM, NOTE
from rltrace.testing.inside.trace import Fate, Outcome, Run
from rltrace.testing.made import process, rows, run_of
from tests.analysis.health.jobs import health_of, kinds, steps


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
