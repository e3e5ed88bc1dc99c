"""How often a gate is wrong: the rates that it states, held against simulated jobs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rltrace.analysis.gate.regression import change_of
from rltrace.testing.inside.analysis import PASS, REGRESSION, UNSURE, find_metric, panel_of
from tests.analysis.gate.simulated import Job, runs_of

pytestmark = pytest.mark.slow

GATES = 100
LIMIT = 0.03
ALPHA = 0.05


def outcomes(job: Job, judged: Job, baselines: int) -> dict[str, int]:
    """How many gates have which outcome, each with runs of its own."""
    found = dict.fromkeys((PASS, REGRESSION, UNSURE), 0)
    for gate in range(GATES):
        first = 1000 * gate
        panel = panel_of(runs_of(job, baselines, first), runs_of(judged, 1, first + 500))
        change = change_of(panel, find_metric("goodput"), LIMIT)
        found[change.outcome(change.p_value, ALPHA)] += 1
    return found


def at_most(rate: float) -> float:
    """What a count of `GATES` with this rate exceeds once in a thousand (normal, with a margin)."""
    return GATES * rate + 3.1 * math.sqrt(GATES * rate * (1 - rate)) + 0.5


@pytest.mark.parametrize(
    "job",
    [
        Job(),
        Job(seed=None, work=0.02),
        Job(noise=0.05, r=0.6),
        Job(starts=0.02, noise=0.02),
        Job(stalls=0.06),
    ],
    ids=["usual", "other-work-each-time", "correlated", "starts-differ", "stalls"],
)
def test_unchanged_runs_are_called_a_regression_no_more_often_than_stated(job: Job) -> None:
    assert outcomes(job, job, baselines=6)[REGRESSION] <= at_most(ALPHA)


def test_a_slowdown_of_5_percent_is_found_and_unchanged_runs_pass() -> None:
    job = Job()
    slow = outcomes(job, replace(job, slower=1.05), baselines=6)
    same = outcomes(job, job, baselines=6)
    assert slow[REGRESSION] >= 0.9 * GATES
    assert slow[PASS] <= at_most(0.01)
    assert same[UNSURE] <= 0.2 * GATES


def test_a_run_that_is_worse_by_the_limit_seldom_passes() -> None:
    job = Job()
    found = outcomes(job, replace(job, slower=1 / (1 - LIMIT)), baselines=6)
    assert found[PASS] <= at_most(0.1)


def test_one_baseline_run_gives_no_false_alarms_but_tells_less() -> None:
    job = Job(starts=0.01)
    assert outcomes(job, job, baselines=1)[REGRESSION] <= at_most(ALPHA)
