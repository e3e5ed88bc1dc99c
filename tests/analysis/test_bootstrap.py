"""Intervals hold the truth as often as they say, for steps that resemble their neighbours too."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rltrace.analysis import bootstrap
from rltrace.analysis.bootstrap import (
    block_length,
    correlation,
    differences,
    mean_ratio,
    rate_ratio,
    ratio,
)


def series(draw: np.random.Generator, n: int, r: float) -> np.ndarray:
    """An autoregression of order 1 with unit variance."""
    noise = draw.normal(size=n)
    for i in range(1, n):
        noise[i] = r * noise[i - 1] + math.sqrt(1 - r * r) * noise[i]
    return noise


@pytest.mark.parametrize(
    ("n", "r", "least"), [(6, 0.0, 0.92), (20, 0.0, 0.92), (60, 0.0, 0.92), (200, 0.6, 0.88)]
)
def test_an_interval_holds_the_truth(
    n: int, r: float, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "DRAWS", 300)
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        x, y = 1 + 0.1 * series(draw, n, r), 1.2 + 0.1 * series(draw, n, r)
        found = differences(x, y, x, y)[0]
        held += found.low <= 0.2 <= found.high
    assert held / 200 >= least


def test_neighbours_that_are_alike_widen_it() -> None:
    draw = np.random.default_rng(2)
    plain, slow = series(draw, 200, 0.0), series(draw, 200, 0.9)
    assert correlation(plain) < 0.2
    assert correlation(slow) > 0.7
    assert block_length(plain) == 1 < block_length(slow)
    widths = [i.high - i.low for i in (differences(x, x, x, x)[0] for x in (plain, slow))]
    assert widths[1] > 2 * widths[0]


def test_columns_that_add_up_do_so_in_differences() -> None:
    draw = np.random.default_rng(3)
    a, b = draw.random((20, 3)), draw.random((30, 3))
    parts = differences(a, b, a.sum(axis=1), b.sum(axis=1))
    whole = differences(a.sum(axis=1), b.sum(axis=1), a.sum(axis=1), b.sum(axis=1))[0]
    assert sum(p.value for p in parts) == pytest.approx(whole.value)


def test_ratios() -> None:
    draw = np.random.default_rng(4)
    a, b = 1 + 0.01 * draw.random(30), 2 + 0.01 * draw.random(30)
    found = ratio(a, b)
    assert found.value == pytest.approx(b.mean() / a.mean())
    assert found.excludes(1.9)
    rates = rate_ratio((a, np.ones(30)), (b, np.full(30, 2.0)))
    assert rates.value == pytest.approx(b.sum() / 2 / a.sum())
    pairs = mean_ratio([2.0, 2.0, 2.0])
    assert (pairs.low, pairs.value, pairs.high) == pytest.approx((2.0, 2.0, 2.0))


def test_too_little_is_unknown() -> None:
    assert math.isnan(ratio([], [1.0]).value)
    one = differences([1.0], [2.0], [1.0], [2.0])[0]
    assert one.value == 1.0
    assert math.isnan(one.low)
    assert math.isnan(mean_ratio([]).value)
    assert math.isnan(mean_ratio([2.0]).low)
    assert not one.excludes(0.0)
