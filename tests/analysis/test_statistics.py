"""Intervals, the longest of many and gains, against tables, simulations and what must hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rltrace.analysis.stats import confidence_interval as of
from rltrace.analysis.stats.resampling import mean_ratio
from rltrace.testing.inside.analysis import freshness_gain, samples_gain
from tests.analysis.made import not_none


def test_ratios_of_pairs() -> None:
    pairs = mean_ratio([2.0, 2.0, 2.0])
    assert (pairs.low, pairs.value, pairs.high) == pytest.approx((2.0, 2.0, 2.0))
    assert np.isnan([mean_ratio([]).value, mean_ratio([2.0]).low]).all()  # too little is unknown


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
    assert of.variation(S) == pytest.approx(1.0)


def test_a_cap_cuts_the_maximum_and_the_mean() -> None:
    assert of.longest_of_lognormal(1024, S) == pytest.approx(11.1, rel=0.01)
    assert of.longest_of_lognormal(1024, S, cap=4.0) == pytest.approx(4.0, rel=0.005)
    draws = np.minimum(np.exp(np.random.default_rng(0).normal(-S * S / 2, S, 400_000)), 1.5)
    assert of.longest_of_lognormal(1, S, 1.5) == pytest.approx(draws.mean(), rel=0.005)
    assert of.longest_of_lognormal(1, S) == pytest.approx(1.0, rel=1e-4)


def test_values_that_stand_for_a_lognormal_have_its_mean() -> None:
    values = of.lognormal_values(4096, 500.0, S)
    assert values.mean() == pytest.approx(500.0, rel=1e-6)
    assert of.lognormal_values(64, 500.0, S, cap=600.0).max() == 600.0
    assert list(of.lognormal_values(3, 7.0, 0.0)) == [7.0, 7.0, 7.0]


def test_work_begins_where_a_place_is_free_first() -> None:
    assert of.makespan([3, 1, 1, 1], 2) == of.makespan([1, 3], 4) == 3
    assert of.makespan([1, 1, 1, 3], 2) == 4  # the long one begins last
    assert of.makespan([], 4) == 0


@pytest.mark.parametrize("per_version", [0.02, 0.2])
def test_a_random_walk_and_a_straight_drift_are_the_ends(per_version: float) -> None:
    """ESS / N of a lognormal ratio is exp(-variance of its logarithm)."""
    walk, straight = math.exp(-per_version * 12), math.exp(-per_version / 12 * 144)
    assert walk == pytest.approx(straight)
    found = not_none(freshness_gain(walk, 1.0, 12, 1))
    assert found.low == pytest.approx(math.exp(-per_version) / walk)
    assert found.high == pytest.approx(math.exp(-per_version / 12) / walk)
    assert found.low < found.value < found.high
    assert freshness_gain(0.9, 1.0, 1.0, 1.0) is None  # a lag within the bound
    assert freshness_gain(math.nan, 1.0, 12.0, 1.0) is None


@pytest.mark.parametrize(("a", "b"), [(0.3, 3.0), (1.0, 1.0), (0.1, 0.1)])
def test_groups_with_a_signal_at_another_size(a: float, b: float) -> None:
    draw = np.random.default_rng(1)
    chance = draw.beta(a, b, 400)
    groups = [(int(draw.binomial(8, p)), 8) for p in chance]
    truth = 1 - float((chance**32 + (1 - chance) ** 32).mean())
    found = not_none(samples_gain(groups, 4))
    now = 1 - float((chance**8 + (1 - chance) ** 8).mean())
    assert found.value * now == pytest.approx(truth, abs=0.06)
    assert found.low * 0.9 < truth / now < found.high * 1.1
    # Nothing is said of prompts that never succeed.
    assert samples_gain([(0, 8)] * 50, 2) is None
    assert samples_gain([(1, 8)], 2) is None


@pytest.mark.parametrize("never", [0.3, 0.7])
def test_prompts_that_never_succeed_stay_so(never: float) -> None:
    """Three quarters of the others' groups have a signal at 3 samples: with 12 nearly all do."""
    draw = np.random.default_rng(1)
    chance = np.where(np.arange(600) < 600 * never, 0.0, 0.5)
    few, many = ([(int(draw.binomial(n, p)), n) for p in chance] for n in (3, 9))
    for groups in (few, many):
        n = groups[0][1]
        truth = (1 - 2 * 0.5 ** (4 * n)) / (1 - 2 * 0.5**n)
        found = not_none(samples_gain(groups, 4))
        assert 0.98 * found.low <= truth <= 1.02 * found.high
        assert found.high < 1.8
    # With more samples of a prompt more is known of those that never succeed.
    wide, narrow = (not_none(samples_gain(groups, 4)) for groups in (few, many))
    assert wide.high / wide.low > narrow.high / narrow.low
