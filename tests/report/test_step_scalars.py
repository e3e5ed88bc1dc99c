"""A step as scalars for a tracker."""

from __future__ import annotations

import math

import pytest

from rltrace.testing.inside.analysis import StepDone
from rltrace.testing.inside.report import scalars


def step(seconds: float, samples: int = 4, lag: float = 1.5) -> StepDone:
    return StepDone(3, 1, seconds, {"rollout": 2.0}, 1000, 400 if samples else 0, samples, lag)


def test_tokens_are_a_second_of_the_step() -> None:
    found = scalars(step(4.0))
    assert found["rltrace/generated_tokens_per_second"] == 250
    assert found["rltrace/trained_tokens_per_second"] == 100
    assert found["rltrace/mean_lag_versions"] == 1.5


@pytest.mark.parametrize("seconds", [0.0, math.nan])
def test_a_step_without_a_length_has_no_rates(seconds: float) -> None:
    found = scalars(step(seconds))
    assert not [name for name in found if name.endswith("per_second")]
    assert found["rltrace/trained_samples"] == 4


def test_what_is_not_known_is_left_out() -> None:
    assert "rltrace/mean_lag_versions" not in scalars(step(1.0, lag=math.nan))
    assert "rltrace/trained_samples" not in scalars(step(1.0, samples=0))
