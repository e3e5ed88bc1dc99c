"""Warm-up, blocks, stalls and Student's t."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rltrace.testing.inside.analysis import confidence_interval_tail as student_tail
from rltrace.testing.inside.analysis import (
    drawn_counts,
    mean_block,
    quantile,
    warmup_steps,
    without_stalls,
)
from tests.analysis.gate.simulated import correlated


@pytest.mark.parametrize(
    ("freedom", "value"),
    [(1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)],
)
def test_the_quantiles_of_student_are_those_of_the_tables(freedom: float, value: float) -> None:
    assert quantile(0.975, freedom) == pytest.approx(value, abs=2e-3)
    assert quantile(0.025, freedom) == pytest.approx(-value, abs=2e-3)
    assert student_tail(value, freedom) == pytest.approx(0.025, abs=1e-4)
    assert student_tail(-value, freedom) == pytest.approx(0.975, abs=1e-4)
    assert math.isnan(student_tail(math.nan, freedom))


def test_neighbours_that_are_alike_are_drawn_in_longer_blocks() -> None:
    random = np.random.default_rng(1)
    apart = [mean_block(random.normal(size=200)) for _ in range(20)]
    alike = [mean_block(correlated(random, 200, 0.8)) for _ in range(20)]
    assert np.median(apart) < 3
    assert np.median(alike) > 6
    assert mean_block(np.ones(50)) == 1
    assert mean_block(np.arange(3.0)) == 1


def test_draws_keep_their_size_and_the_error_of_a_correlated_mean() -> None:
    random = np.random.default_rng(2)
    size, r = 300, 0.6
    true = math.sqrt((1 + r) / (1 - r) / size)
    errors = []
    for _ in range(10):
        values = correlated(random, size, r)
        counts = drawn_counts(size, mean_block(values), seed=3)
        assert (counts.sum(axis=1) == size).all()
        errors.append(float((counts @ values / size).std()))
    assert np.mean(errors) == pytest.approx(true, rel=0.25)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([9, 4] + [2, 2.1, 1.9, 2] * 5, 2),
        ([3] + [2, 2.1, 1.9, 2] * 5, 1),
        ([2.6] * 6 + [2, 2.1, 1.9, 2] * 5, 6),
        ([2, 2.1, 1.9, 2] * 5, 0),
        ([2, 2.1, 1.9, 2] * 5 + [3, 3.1] * 3, 0),
        ([2, 2, 9, 2, 2, 2, 2, 2.1, 1.9, 2], 0),
        ([2] * 12 + [1] * 8, 0),
        ([3, 2, 2], 0),
        ([], 0),
    ],
    ids=["two", "one", "a-level", "none", "slower-later", "a-spike", "most-of-it", "few", "empty"],
)
def test_warm_up_is_where_the_leading_steps_are_longer(lengths: list[float], expected: int) -> None:
    assert warmup_steps([np.array(lengths, np.float64)]) == expected


def test_runs_together_do_not_take_chance_for_warm_up() -> None:
    random = np.random.default_rng(4)
    runs = [np.exp(0.3 * random.normal(size=30)) for _ in range(6)]
    for run in runs:
        run[:3] *= 2.5
    assert warmup_steps(runs) == 3


def test_a_stall_is_cut_to_what_is_usual_and_a_slow_run_is_not() -> None:
    random = np.random.default_rng(5)
    runs = [np.exp(0.02 * random.normal(size=40)) for _ in range(3)]
    runs[1][7] *= 3
    runs[2] *= 1.2
    cut = without_stalls(runs, paired=True)
    assert cut[1][7] < 1.15
    assert cut[2].mean() == pytest.approx(runs[2].mean())
    assert (cut[0] == runs[0]).all()
    shared = np.where(np.arange(40) % 10 == 3, 4.0, 1.0)  # work of all runs is no stall
    runs = [shared * np.exp(0.02 * random.normal(size=40)) for _ in range(3)]
    for before, after in zip(runs, without_stalls(runs, paired=True), strict=True):
        assert after == pytest.approx(before)
