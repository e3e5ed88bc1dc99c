"""Steps far longer than the others alarm, and those of a job that is only noisy do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rltrace.analysis.alarm import ALARM, NOTE
from rltrace.trace.vocabulary import Stage
from tests.analysis.handmade import at, process, run_of
from tests.analysis.health.jobs import health_of, kinds, steps


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
