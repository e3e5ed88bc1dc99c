"""Cut lognormal lengths: moments, the longest, and a small batch that stands for a large one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rltrace.analysis.plan.lengths import lengths
from rltrace.testing.inside.analysis import log_deviation
from rltrace.testing.inside.trace import RltraceError

EXACT = {
    (2, 0.5): 1.26, (4, 0.5): 1.54, (8, 0.5): 1.83, (16, 0.5): 2.13, (32, 0.5): 2.45,
    (64, 0.5): 2.77, (128, 0.5): 3.11, (256, 0.5): 3.46,
    (2, 1): 1.44, (4, 1): 1.99, (8, 1): 2.66, (16, 1): 3.44, (32, 1): 4.34, (64, 1): 5.37,
    (128, 1): 6.55, (256, 1): 7.88,
    (2, 2): 1.63, (4, 2): 2.54, (8, 2): 3.80, (16, 2): 5.49, (32, 2): 7.70, (64, 2): 10.54,
    (128, 2): 14.12, (256, 2): 18.59,
}  # fmt: skip
"""Expected longest of n over the mean, by n and coefficient of variation; to two digits."""


@pytest.mark.parametrize(("n", "c"), EXACT)
def test_the_longest_is_the_exact_order_statistic(n: int, c: float) -> None:
    of = lengths(1000, math.inf, log_deviation(c), 0.3)
    assert of.longest(n) / 1000 == pytest.approx(EXACT[n, c], rel=0.01)


@pytest.mark.parametrize(("mean", "cap", "s"), [(6000, 32768, 1.0), (3000, 4000, 0.8), (9, 10, 2)])
def test_moments_of_cut_lengths_are_those_of_many_drawn_ones(
    mean: float, cap: float, s: float
) -> None:
    of = lengths(mean, cap, s, 0.3)
    drawn = of.uncut * np.exp(s * np.random.default_rng(1).standard_normal(400_000) - s * s / 2)
    cut = np.minimum(drawn, cap)
    assert cut.mean() == pytest.approx(mean, rel=0.01)
    assert (cut**2).mean() == pytest.approx(of.square, rel=0.01)
    assert (drawn >= cap).mean() == pytest.approx(of.cut_share, abs=0.005)


def test_lengths_that_do_not_vary_are_their_mean() -> None:
    of = lengths(500, 1000, 0.0, 0.3)
    assert (of.square, of.longest(999), of.cut_share) == (500**2, 500, 0)


def test_a_batch_has_the_mean_and_the_longest_of_the_one_it_stands_for() -> None:
    of = lengths(2000, 16000, 1.0, 0.3)
    batch = of.batch(8, 8, 8192)
    assert batch.shape == (8, 8)
    assert batch.mean() == pytest.approx(2000, rel=0.01)
    assert batch.max() == pytest.approx(of.longest(8192))


def test_groups_are_as_alike_inside_as_is_stated() -> None:
    def spread(within: float) -> float:
        logs = np.log(lengths(2000, math.inf, 1.0, within).batch(64, 16, 1024))
        return float(logs.std(axis=1).mean())

    assert spread(0.1) < spread(0.5) < spread(1.0)
    assert spread(0.1) == pytest.approx(math.sqrt(0.1), rel=0.15)


def test_the_longest_of_a_group_follows_what_varies_within_it() -> None:
    of = lengths(2000, math.inf, 1.0, 0.05)
    assert of.longest_of_group(16) < of.longest(16)


@pytest.mark.parametrize("cap", [1000, 999, 0])
def test_a_cap_that_is_not_above_the_mean_is_refused(cap: float) -> None:
    with pytest.raises(RltraceError, match="not above the mean"):
        lengths(1000, cap, 1.0, 0.3)
