"""What the benchmarks say can be relied on: turns, intervals, limits and exit codes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.measuring import (
    Check,
    Result,
    Statistic,
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


def test_a_few_outliers_move_nothing() -> None:
    for last in (5, 5e9):
        assert middle_means(np.array([1.0, 2, 3, 4, last])) == 3
    found = spread(list(range(101)))
    assert (found.low, found.median, found.high, found.count) == (10, 50, 90, 101)


@pytest.mark.parametrize("statistic", [medians, middle_means])
def test_the_interval_holds_the_truth_as_often_as_it_says(statistic: Statistic) -> None:
    random = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        disturbed = random.standard_t(2, 40)  # now and then something comes between
        low, high = interval(disturbed, level=0.9, statistic=statistic, draws=400)
        held += low <= 0 <= high
    assert 0.82 <= held / 200 <= 0.98


def test_a_missed_limit_is_exit_code_1_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    kept, missed = Check("a", 1.0, 1.0, "ms"), Check("b", 1.1, 1.0, "ms")
    assert Result("t", "ms", checks=[kept]).finish(as_json=False) == 0
    assert Result("t", "ms", checks=[kept, missed]).finish(as_json=False) == 1
    assert "MISSED b: 1.1 ms, limit 1" in capsys.readouterr().out
    assert Result("t", "ms", checks=[Check("c", float("nan"), 1.0, "")]).finish(as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["checks"][0]["holds"] is False
