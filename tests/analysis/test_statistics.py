"""Intervals, the longest of many and gains, against tables, simulations and what must hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rltrace.analysis import order_statistics as of
from rltrace.analysis.gains import freshness_gain, samples_gain, signal_share
from rltrace.analysis.stats import resampling as ratios
from tests.analysis.made import not_none


def series(draw: np.random.Generator, n: int, r: float) -> np.ndarray:
    """An autoregression of order 1 with unit variance."""
    noise = draw.normal(size=n)
    for i in range(1, n):
        noise[i] = r * noise[i - 1] + math.sqrt(1 - r * r) * noise[i]
    return noise


@pytest.mark.parametrize(
    ("n", "r", "least"), [(6, 0.0, 0.92), (20, 0.0, 0.92), (60, 0.0, 0.92), (200, 0.6, 0.88)]
)
def test_an_interval_holds_the_truth(n: int, r: float, least: float) -> None:
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        x, y = 1 + 0.1 * series(draw, n, r), 1.2 + 0.1 * series(draw, n, r)
        found = ratios.differences(x, y, x, y)[0]
        held += found.low <= 0.2 <= found.high
    assert held / 200 >= least


def test_neighbours_that_are_alike_widen_it() -> None:
    draw = np.random.default_rng(2)
    plain, slow = series(draw, 200, 0.0), series(draw, 200, 0.9)
    widths = [i.high - i.low for i in (ratios.differences(x, x, x, x)[0] for x in (plain, slow))]
    assert widths[1] > 2 * widths[0]


def test_ratios() -> None:
    draw = np.random.default_rng(4)
    a, b = 1 + 0.01 * draw.random(30), 2 + 0.01 * draw.random(30)
    found = ratios.ratio(a, b)
    assert found.value == pytest.approx(b.mean() / a.mean())
    assert found.excludes(1.9)
    rates = ratios.rate_ratio((a, np.ones(30)), (b, np.full(30, 2.0)))
    assert rates.value == pytest.approx(b.sum() / 2 / a.sum())
    pairs = ratios.mean_ratio([2.0, 2.0, 2.0])
    assert (pairs.low, pairs.value, pairs.high) == pytest.approx((2.0, 2.0, 2.0))
    # Too little is unknown.
    one = ratios.differences([1.0], [2.0], [1.0], [2.0])[0]
    assert one.value == 1.0
    assert not one.excludes(0.0)
    unknown = [ratios.ratio([], [1.0]).value, one.low, ratios.mean_ratio([]).value]
    assert np.isnan([*unknown, ratios.mean_ratio([2.0]).low]).all()


S = of.log_deviation(1.0)


# Mean maximum in units of the mean, for c = 0.5, 1 and 2: by a Monte Carlo of up to a million
# trials, and the integral worked out on its own.
@pytest.mark.parametrize(
    ("n", "longest"),
    [
        (2, (1.26, 1.44, 1.63)),
        (8, (1.83, 2.66, 3.80)),
        (16, (2.13, 3.44, 5.49)),
        (64, (2.77, 5.37, 10.54)),
        (256, (3.46, 7.88, 18.59)),
    ],
)
def test_the_longest_of_a_lognormal_is_the_exact_one(n: int, longest: tuple[float, ...]) -> None:
    for c, exact in zip((0.5, 1.0, 2.0), longest, strict=True):
        found = of.longest_of_lognormal(n, of.log_deviation(c))
        assert found == pytest.approx(exact, rel=0.01)
        assert found <= n


def test_the_longest_of_a_lognormal_where_it_is_known_in_another_way() -> None:
    closed = math.erfc(-0.8 / 2)  # of two: 2 Phi(s / sqrt 2)
    assert of.longest_of_lognormal(2, 0.8) == pytest.approx(closed, rel=1e-5)
    assert of.longest_of_lognormal(16, 1.17) == pytest.approx(5.0, rel=0.01)
    assert of.variation(1.17) == pytest.approx(1.7, abs=0.02)
    # A label for a tail comes from two quantiles.
    assert of.fitted_log_deviation(100, 393) == pytest.approx(S, rel=0.01)
    assert of.variation(S) == pytest.approx(1.0)


def test_a_cap_cuts_the_maximum_and_the_mean() -> None:
    assert of.longest_of_lognormal(1024, S) == pytest.approx(11.1, rel=0.01)
    assert of.longest_of_lognormal(1024, S, cap=4.0) == pytest.approx(4.0, rel=0.005)
    draws = np.minimum(np.exp(np.random.default_rng(0).normal(-S * S / 2, S, 400_000)), 1.5)
    assert of.longest_of_lognormal(1, S, 1.5) == pytest.approx(draws.mean(), rel=0.005)
    assert of.longest_of_lognormal(1, S) == pytest.approx(1.0, rel=1e-4)


def test_the_longest_of_measured_values_is_exact() -> None:
    assert of.longest_of([3.0, 1.0], 1) == pytest.approx(2.0)
    assert of.longest_of([3.0, 1.0], 2) == pytest.approx(0.25 * 1 + 0.75 * 3)
    assert of.longest_of([3.0, 1.0], 1000) == pytest.approx(3.0)
    assert math.isnan(of.longest_of([], 4))


def test_values_that_stand_for_a_lognormal_have_its_mean_and_its_maximum() -> None:
    values = of.lognormal_values(4096, 500.0, S)
    assert values.mean() == pytest.approx(500.0, rel=1e-6)
    longest = 500 * of.longest_of_lognormal(16, S)
    assert of.longest_of(values, 16) == pytest.approx(longest, rel=0.01)
    assert of.lognormal_values(64, 500.0, S, cap=600.0).max() == 600.0
    assert list(of.lognormal_values(3, 7.0, 0.0)) == [7.0, 7.0, 7.0]


def test_work_begins_where_a_place_is_free_first() -> None:
    assert of.makespan([3, 1, 1, 1], 2) == of.makespan([1, 3], 4) == 3
    assert of.makespan([1, 1, 1, 3], 2) == 4  # the long one begins last
    assert of.makespan([], 4) == 0


def test_variance_between_and_within_groups_is_told_apart() -> None:
    draw = np.random.default_rng(3)
    groups = np.repeat(np.arange(400), 16)
    level = draw.normal(0, 0.9, 400)[groups]
    values = np.exp(level + draw.normal(0, 0.25, len(groups)))
    between, within = of.split_log_variance(values, groups)
    assert between == pytest.approx(0.9, rel=0.1)
    assert within == pytest.approx(0.25, rel=0.05)
    assert np.isnan(of.split_log_variance([1.0, 2.0], [0, 1])).all()
    assert of.split_log_variance([2.0, 2.0, 2.0], [0, 0, 0])[1] == 0


@pytest.mark.parametrize("per_version", [0.02, 0.2])
def test_a_random_walk_and_a_straight_drift_are_the_ends(per_version: float) -> None:
    """ESS / N of a lognormal ratio is exp(-variance of its logarithm)."""
    walk, straight = math.exp(-per_version * 12), math.exp(-per_version / 12 * 144)
    assert walk == pytest.approx(straight)
    found = not_none(freshness_gain(walk, 1.0, 12, 1))
    assert found.low == pytest.approx(math.exp(-per_version) / walk)
    assert found.high == pytest.approx(math.exp(-per_version / 12) / walk)
    assert found.low < found.middle < found.high
    assert freshness_gain(0.9, 1.0, 1.0, 1.0) is None  # a lag within the bound
    assert freshness_gain(math.nan, 1.0, 12.0, 1.0) is None


@pytest.mark.parametrize(("a", "b"), [(0.3, 3.0), (1.0, 1.0), (0.1, 0.1)])
def test_groups_with_a_signal_at_another_size(a: float, b: float) -> None:
    draw = np.random.default_rng(1)
    chance = draw.beta(a, b, 400)
    groups = [(int(draw.binomial(8, p)), 8) for p in chance]
    truth = 1 - float((chance**32 + (1 - chance) ** 32).mean())
    assert signal_share(groups, 32) == pytest.approx(truth, abs=0.06)
    found = not_none(samples_gain(groups, 4))
    now = 1 - float((chance**8 + (1 - chance) ** 8).mean())
    assert found.low * 0.9 < truth / now < found.high * 1.1
    # Nothing is said of prompts that never succeed.
    assert samples_gain([(0, 8)] * 50, 2) is None
    assert samples_gain([(1, 8)], 2) is None
    assert math.isnan(signal_share([], 8))
