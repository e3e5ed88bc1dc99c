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


@pytest.mark.parametrize(
    ("lags", "gain", "told"),
    [
        (
            dict.fromkeys(range(10), 0.1),
            Estimate(1.068, 1.07, 1.072),
            ["+7 % useful tokens for each device-second.", "5: 10 %, 6 to 9: 40 %."],
        ),
        (
            {0: 0.25, 1: 0.75},
            Estimate(1.06, 1.07, 1.072),
            ["for each device-second (+6 % to +7 %).", "0: 25 %, 1: 75 %."],
        ),
    ],
)
def test_what_reads_alike_is_told_once_and_many_lags_together(
    lags: dict[int, float], gain: Estimate, told: list[str]
) -> None:
    base = Baseline(10.0, 10.0, "async", {}, lags, (), 0.0)
    found = Prediction(
        levers=("lag_bound=12",), outcome="no gain", before_s=10.0, step_s=SAME.times(10),
        gain=gain, goodput_gain=gain, useful_tokens_per_device_s=UNKNOWN,
        useful_tokens_per_usd=UNKNOWN, devices={}, learner_waits_share=0.0, lag_shares=lags,
        mean_lag=1.0, stale_share=0.0, rests_on=(),
    )  # fmt: skip
    lines = tuple(whatif_section.one(base, found).lines)
    for start, end in zip(("Then: 10.0 s", "Lag in policy versions"), told, strict=True):
        [line] = [line for line in lines if line.startswith(start)]
        assert line.endswith(end)
