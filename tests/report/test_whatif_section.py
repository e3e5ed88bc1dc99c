"""What-if answers in words."""

from __future__ import annotations

import math

from rltrace.analysis.whatif.predict import Baseline, Estimate, Prediction
from rltrace.report import whatif_section

SAME = Estimate(1.0, 1.0, 1.0)
UNKNOWN = Estimate(math.nan, math.nan, math.nan)


def lags_of(lags: dict[int, float]) -> str:
    base = Baseline(10.0, 10.0, "async", {}, (), lags, ())
    found = Prediction(
        levers=("lag_bound=12",), verdict="no gain", before_s=10.0, step_s=SAME.times(10),
        gain=SAME, goodput_gain=SAME, useful_tokens_per_device_s=UNKNOWN,
        useful_tokens_per_usd=UNKNOWN, devices={}, learner_waits_share=0.0, lags=lags,
        mean_lag=1.0, stale_share=0.0, walls=(), rests_on=(),
    )  # fmt: skip
    lines = whatif_section.one(base, found).lines
    return next(line for line in lines if line.startswith("Lag in policy versions"))


def test_lags_beyond_those_that_are_listed_are_told_together() -> None:
    line = lags_of(dict.fromkeys(range(10), 0.1))
    assert line.endswith("5: 10 %, 6 to 9: 40 %.")


def test_few_lags_are_all_listed() -> None:
    assert lags_of({0: 0.25, 1: 0.75}).endswith("0: 25 %, 1: 75 %.")
