"""A reward that collapses alarms, noise alone never does; what a gain in reward has cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rltrace.testing.inside.analysis import ALARM, summarize
from rltrace.testing.inside.report import reward_section
from rltrace.testing.inside.trace import Outcome, Run
from rltrace.testing.made import process, rows, run_of
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
    if fell_at is None:
        assert collapse is None
        assert found.health.well
    else:
        assert collapse is not None
        assert abs(collapse.step - fell_at) <= 1
        assert kinds(found.health) == [("reward", ALARM)]


def test_noise_alone_never_alarms(tmp_path: Path) -> None:
    run = rewarded(tmp_path, [0.5] * 120, noise=1.0, samples=4)
    found = summarize(run, predict=False).reward
    assert found is not None
    assert found.collapse is None
    assert found.gain_low < 0 < found.gain_high


def test_the_reward_is_set_against_what_it_cost(tmp_path: Path) -> None:
    run = rewarded(tmp_path, [0.1 * n for n in range(10)])
    run.processes[0].facts["cores"] = 36
    found = summarize(run, predict=False).reward
    assert found is not None
    assert [point.reward for point in found.points] == pytest.approx([0.1 * n for n in range(10)])
    assert found.device == "core"
    assert found.device_hours == pytest.approx(1)  # 100 s of 36 cores
    assert found.gain_per_device_hour == pytest.approx(1)
    assert found.steps_per_hour == pytest.approx(360)
    assert (found.first, found.last) == (pytest.approx(0.1), pytest.approx(0.8))


@pytest.mark.parametrize(("failed", "well"), [(0, True), (5, True), (6, False)])
def test_most_verdicts_fail(tmp_path: Path, failed: int, well: bool) -> None:
    driver = process("driver", *steps(*[10] * 6))
    outcomes = [Outcome.ERROR] * failed + [Outcome.OK] * (10 - failed)
    rows(driver, "rewards", start_s=[1] * 10, end_s=[2] * 10, trajectory=list(range(10)),
         value=[np.nan if o else 1.0 for o in outcomes], outcome=outcomes)  # fmt: skip
    assert health_of(run_of(tmp_path, driver)).well == well


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("of_step", [[-1e308] * 12, [1e308, -1e308] * 6, [0.5] * 6 + [-1e308] * 6])
def test_rewards_whose_sum_no_number_holds_are_shown(tmp_path: Path, of_step: list[float]) -> None:
    """Without a warning, and nothing that is no number is taken for a fall or a trend."""
    run = rewarded(tmp_path, of_step)
    summary = summarize(run)
    assert summary.reward is not None
    assert summary.reward.collapse is None
    first, *_ = reward_section(summary.reward, summary.signal).lines
    told = first.removeprefix("Mean verdict ").split(" at first")[0]
    assert told in ("not finite", "–", "0.500")
