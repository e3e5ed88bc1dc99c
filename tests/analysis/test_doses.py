"""Doses that were written down are put on the steps in which they were given."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import rltrace
from rltrace.testing.inside.analysis import Doses, find_steps, work_crosses_steps
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.trace import Stage
from rltrace.testing.made import process, run_of


def written(recorder: Recorder, *readings: dict[str, float]) -> Doses:
    """The doses of a run whose steps have these readings of the counters of rollout."""
    for number, step in enumerate(readings):
        with rltrace.step(number):
            for what, value in step.items():
                rltrace.counter(f"probe/rollout/{what.rstrip('+')}", value)
    run = rltrace.open_run(Path(recorder.run_dir))
    return Doses(run, find_steps(run, (0, 0)))


def test_what_was_slept_and_worked_adds_up_and_plans_do_not(recorder: Recorder) -> None:
    doses = written(
        recorder,
        {"worked": 2.0},
        {
            "planned": 0.4,
            "planned+": 0.4,
            "worked": 1.0,
            "worked+": 2.0,
            "slept": 0.4,
            "slept+": 0.8,
        },
        {"worked": 1.0, "longest": 0.5, "longest+": 0.2},
    )
    assert doses.planned("rollout").tolist() == [0, 0.4, 0]
    assert doses.slept_s("rollout") == pytest.approx([0, 1.2, 0])
    worked, longest = doses.work("rollout")
    assert worked.tolist() == [2, 3, 1]
    assert longest.tolist() == [0, 0, 0.5]
    assert doses.given("rollout") == pytest.approx(1)
    assert math.isnan(doses.given("train"))
    assert not doses.planned("train").any()


def test_steps_whose_doses_were_refused_are_known_and_count_for_nothing(
    recorder: Recorder,
) -> None:
    full = {"planned": 0.5, "worked": 1.0, "slept": 0.5}
    doses = written(recorder, full, {**full, "slept": 0.0}, full, {"worked": 1.0})
    assert doses.refused.tolist() == [False, True, False, False]
    assert doses.given("rollout") == pytest.approx(1)


def test_half_of_the_doses_given_is_half(recorder: Recorder) -> None:
    doses = written(recorder, *[{"planned": 0.5, "worked": 1.0, "slept": 0.25}] * 4)
    assert doses.given("rollout") == pytest.approx(0.5)


def test_a_run_without_counters_has_no_doses(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", (("step", 0), 0, 10), (Stage.ROLLOUT, 0, 9)))
    doses = Doses(run, find_steps(run, (0, 0)))
    assert doses.planned("rollout").tolist() == [0]
    assert np.isnan(doses.given("rollout"))


@pytest.mark.parametrize(
    ("rollouts", "crosses"),
    [
        ([(0, 9), (10, 19), (20, 29), (30, 39)], False),
        ([(0, 9), (10, 21), (21, 32), (32, 39)], True),
        ([(0, 39)], True),
    ],
)
def test_work_that_goes_on_when_a_step_ends_is_seen(
    tmp_path: Path, rollouts: list[tuple[int, int]], crosses: bool
) -> None:
    steps = [(("step", n), 10 * n, 10 * n + 10) for n in range(4)]
    waits = (Stage.WAIT, 5, 35, 2)  # is no work
    spans = [(Stage.ROLLOUT, start, end) for start, end in rollouts]
    run = run_of(tmp_path, process("driver", *steps, waits), process("rollout", *spans))
    assert work_crosses_steps(run, find_steps(run, (0, 0))) is crosses
