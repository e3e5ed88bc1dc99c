"""What moves against statistical walls would gain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rltrace.analysis.gains import freshness_gain, samples_gain, signal_share


@pytest.mark.parametrize("per_version", [0.02, 0.2])
def test_a_random_walk_and_a_straight_drift_are_the_ends(per_version: float) -> None:
    """ESS / N of a lognormal ratio is exp(-variance of its logarithm)."""
    walk, straight = math.exp(-per_version * 12), math.exp(-per_version / 12 * 144)
    assert walk == pytest.approx(straight)
    found = freshness_gain(walk, 1.0, 12, 1)
    assert found is not None
    assert found.low == pytest.approx(math.exp(-per_version) / walk)
    assert found.high == pytest.approx(math.exp(-per_version / 12) / walk)
    assert found.low < found.middle < found.high


def test_a_lag_within_the_bound_gains_nothing() -> None:
    assert freshness_gain(0.9, 1.0, 1.0, 1.0) is None
    assert freshness_gain(math.nan, 1.0, 12.0, 1.0) is None


@pytest.mark.parametrize(("a", "b"), [(0.3, 3.0), (1.0, 1.0), (0.1, 0.1)])
def test_groups_with_a_signal_at_another_size(a: float, b: float) -> None:
    draw = np.random.default_rng(1)
    chance = draw.beta(a, b, 400)
    groups = [(int(draw.binomial(8, p)), 8) for p in chance]
    truth = 1 - float((chance**32 + (1 - chance) ** 32).mean())
    assert signal_share(groups, 32) == pytest.approx(truth, abs=0.06)
    found = samples_gain(groups, 4)
    assert found is not None
    now = 1 - float((chance**8 + (1 - chance) ** 8).mean())
    assert found.low * 0.9 < truth / now < found.high * 1.1


def test_nothing_is_said_of_prompts_that_never_succeed() -> None:
    assert samples_gain([(0, 8)] * 50, 2) is None
    assert samples_gain([(1, 8)], 2) is None
    assert math.isnan(signal_share([], 8))
