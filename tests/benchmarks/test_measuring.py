"""What the benchmarks say can be relied on: turns, intervals, limits and exit codes."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest

from benchmarks.measuring import (
    Check,
    Result,
    Statistic,
    child_cpu_ms,
    interval,
    medians,
    middle_means,
    spread,
    take_turns,
)


def test_turns_reverse_every_round() -> None:
    called: list[str] = []

    def measure(name: str) -> float:
        called.append(name)
        return float(len(called))

    taken = take_turns({n: lambda n=n: measure(n) for n in "ABC"}, 2)
    assert "".join(called) == "ABCCBA"
    assert taken == {"A": [1, 6], "B": [2, 5], "C": [3, 4]}


@pytest.mark.parametrize("statistic", [medians, middle_means])
def test_the_interval_holds_the_truth_as_often_as_it_says(
    statistic: Statistic,
) -> None:
    random = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        disturbed = random.standard_t(2, 40)  # now and then something comes between
        low, high = interval(disturbed, level=0.9, statistic=statistic, draws=400)
        held += low <= 0 <= high
    assert 0.82 <= held / 200 <= 0.98


def test_outliers_do_not_move_the_middle_mean() -> None:
    assert middle_means(np.array([1.0, 2, 3, 4, 5])) == 3
    assert middle_means(np.array([1.0, 2, 3, 4, 5e9])) == 3


def test_the_spread_is_of_the_middle_eight_tenths() -> None:
    found = spread(list(range(101)))
    assert (found.low, found.median, found.high, found.count) == (10, 50, 90, 101)


def test_a_missed_limit_is_exit_code_1_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    kept, missed = Check("a", 1.0, 1.0, "ms"), Check("b", 1.1, 1.0, "ms")
    assert Result("t", "ms", checks=[kept]).finish(as_json=False) == 0
    assert Result("t", "ms", checks=[kept, missed]).finish(as_json=False) == 1
    assert "MISSED b: 1.1 ms, limit 1" in capsys.readouterr().out
    assert Result("t", "ms", checks=[Check("c", float("nan"), 1.0, "")]).finish(as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["checks"][0]["holds"] is False


def test_cpu_of_a_child_is_its_own() -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    assert child_cpu_ms([sys.executable, "-c", busy], os.environ) >= 300
    with pytest.raises(RuntimeError, match="exit code 3"):
        child_cpu_ms([sys.executable, "-c", "raise SystemExit(3)"], os.environ)
