"""The longest of many, against tables, simulations and what must hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rltrace.analysis import order_statistics as of

# Mean maximum in units of the mean, for c = 0.5, 1 and 2: by a Monte Carlo of up to a million
# trials, and the integral worked out on its own.
LONGEST = {
    2: (1.26, 1.44, 1.63),
    4: (1.54, 1.99, 2.54),
    8: (1.83, 2.66, 3.80),
    16: (2.13, 3.44, 5.49),
    32: (2.45, 4.34, 7.70),
    64: (2.77, 5.37, 10.54),
    128: (3.11, 6.55, 14.12),
    256: (3.46, 7.88, 18.59),
}


@pytest.mark.parametrize("n", LONGEST)
def test_the_longest_of_a_lognormal_is_the_exact_one(n: int) -> None:
    for c, exact in zip((0.5, 1.0, 2.0), LONGEST[n], strict=True):
        s = of.log_deviation(c)
        found = of.longest_of_lognormal(n, s)
        assert found == pytest.approx(exact, rel=0.01)
        assert found <= n


def test_the_longest_of_two_has_a_closed_form() -> None:
    s = 0.8
    closed = math.erfc(-s / 2)  # 2 Phi(s / sqrt 2)
    assert of.longest_of_lognormal(2, s) == pytest.approx(closed, rel=1e-5)


def test_five_times_the_mean_at_16_needs_a_heavier_tail_than_c_of_1() -> None:
    assert of.longest_of_lognormal(16, 1.17) == pytest.approx(5.0, rel=0.01)
    assert of.variation(1.17) == pytest.approx(1.7, abs=0.02)


def test_a_cap_cuts_the_maximum_and_the_mean() -> None:
    s = of.log_deviation(1.0)
    assert of.longest_of_lognormal(1024, s) == pytest.approx(11.1, rel=0.01)
    assert of.longest_of_lognormal(1024, s, cap=4.0) == pytest.approx(4.0, rel=0.005)
    draws = np.exp(np.random.default_rng(0).normal(-s * s / 2, s, 400_000))
    assert of.longest_of_lognormal(1, s, 1.5) == pytest.approx(
        np.minimum(draws, 1.5).mean(), rel=0.005
    )
    assert of.longest_of_lognormal(1, s) == pytest.approx(1.0, rel=1e-4)


def test_the_longest_of_measured_values_is_exact() -> None:
    assert of.longest_of([3.0, 1.0], 1) == pytest.approx(2.0)
    assert of.longest_of([3.0, 1.0], 2) == pytest.approx(0.25 * 1 + 0.75 * 3)
    assert of.longest_of([3.0, 1.0], 1000) == pytest.approx(3.0)
    assert math.isnan(of.longest_of([], 4))


def test_values_that_stand_for_a_lognormal_have_its_mean_and_its_maximum() -> None:
    s = of.log_deviation(1.0)
    values = of.lognormal_values(4096, 500.0, s)
    assert values.mean() == pytest.approx(500.0, rel=1e-6)
    assert of.longest_of(values, 16) == pytest.approx(
        500 * of.longest_of_lognormal(16, s), rel=0.01
    )
    assert of.lognormal_values(64, 500.0, s, cap=600.0).max() == 600.0
    assert list(of.lognormal_values(3, 7.0, 0.0)) == [7.0, 7.0, 7.0]


@pytest.mark.parametrize(
    ("n", "slots", "cap", "tax"),
    [
        (1024, 1024, math.inf, 11.1),
        (1024, 1024, 4.0, 4.1),
        (1024, 256, math.inf, 3.1),
        (1024, 256, 4.0, 1.8),
        (1024, 64, math.inf, 1.35),
        (1024, 64, 4.0, 1.17),
        (8192, 1024, math.inf, 2.6),
        (8192, 1024, 4.0, 1.4),
    ],
)
def test_the_tax_of_a_tail_is_set_by_waves_and_cap(
    n: int, slots: int, cap: float, tax: float
) -> None:
    s = of.log_deviation(1.0)
    draw = np.random.default_rng(1)
    found = []
    for _ in range(600 if n == 1024 else 60):
        lengths = np.minimum(np.exp(draw.normal(-s * s / 2, s, n)), cap)
        found.append(of.makespan(lengths.tolist(), slots) / (lengths.sum() / slots))
    assert np.mean(found) == pytest.approx(tax, rel=0.06)


def test_a_published_simulation_with_38_percent_of_slots_in_use_is_an_ordinary_draw() -> None:
    draw = np.random.default_rng(2)
    used = []
    for _ in range(200):
        lengths = np.minimum(np.exp(draw.normal(7.4, 1.15, 512)), 32_768)
        used.append(lengths.sum() / 128 / of.makespan(lengths.tolist(), 128))
    low, high = np.quantile(used, [0.05, 0.95])
    assert low < 0.38 < high
    assert high - low < 0.2


def test_work_begins_where_a_place_is_free_first() -> None:
    assert list(of.finish_times([3, 1, 1, 1], 2)) == [3, 1, 2, 3]
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


def test_a_label_for_a_tail_comes_from_two_quantiles() -> None:
    s = of.fitted_log_deviation(100, 393)
    assert s == pytest.approx(0.8326, rel=0.01)
    assert of.variation(s) == pytest.approx(1.0, rel=0.02)
