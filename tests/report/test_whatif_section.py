"""What-if answers in words."""

from __future__ import annotations

import math

import pytest

from rltrace.report import whatif_section
from rltrace.testing.inside.analysis import Prediction
from rltrace.testing.inside.analysis import predict_Baseline as Baseline
from rltrace.testing.inside.analysis import predict_Estimate as Estimate

SAME = Estimate(1.0, 1.0, 1.0)
UNKNOWN = Estimate(math.nan, math.nan, math.nan)


def answer(lags: dict[int, float], gain: Estimate = SAME) -> tuple[str, ...]:
    base = Baseline(10.0, 10.0, "async", {}, (), lags, ())
    found = Prediction(
        levers=("lag_bound=12",), verdict="no gain", before_s=10.0, step_s=SAME.times(10),
        gain=gain, goodput_gain=gain, useful_tokens_per_device_s=UNKNOWN,
        useful_tokens_per_usd=UNKNOWN, devices={}, learner_waits_share=0.0, lags=lags,
        mean_lag=1.0, stale_share=0.0, walls=(), rests_on=(),
    )  # fmt: skip
    return tuple(whatif_section.one(base, found).lines)


@pytest.mark.parametrize(
    ("gain", "says"),
    [
        (Estimate(1.068, 1.07, 1.072), "device-second."),
        (Estimate(1.06, 1.07, 1.072), "device-second (+6 % to +7 %)."),
    ],
)
def test_a_range_whose_ends_read_as_its_middle_is_left_out(gain: Estimate, says: str) -> None:
    [line] = [one for one in answer({}, gain) if one.startswith("Then:")]
    assert line == f"Then: 10.0 s a step: no gain, +7 % useful tokens for each {says}"


@pytest.mark.parametrize(
    ("lags", "told"),
    [
        (dict.fromkeys(range(10), 0.1), "5: 10 %, 6 to 9: 40 %."),
        ({0: 0.25, 1: 0.75}, "0: 25 %, 1: 75 %."),
    ],
)
def test_lags_that_are_not_listed_are_told_together(lags: dict[int, float], told: str) -> None:
    [line] = [line for line in answer(lags) if line.startswith("Lag in policy versions")]
    assert line.endswith(told)
