"""Judgements made by hand: one of each outcome, with names that no form may take for markup."""

from __future__ import annotations

import math
from dataclasses import replace

from rltrace.analysis.differing import Difference
from rltrace.testing.inside.analysis import (
    PASS,
    REGRESSION,
    UNSURE,
    Drift,
    FactorChange,
    Finding,
    Interval,
    Judgement,
    StageChange,
    parse_condition,
)
from rltrace.testing.inside.analysis import bootstrap_UNKNOWN as UNKNOWN

ROLLOUT = StageChange("rollout", 0.5, 0.55, Interval(0.08, 0.06, 0.1), Interval(1.1, 1.08, 1.12))
PEAK = FactorChange("peak rate", 1200.0, 1100.0, Interval(0.92, 0.9, 0.94))

HOLDS = Finding(
    parse_condition("max", "lag.p99=4"), PASS, "lag.p99 is 1 of at most 4", "policy versions",
    1.0, math.nan, UNKNOWN, UNKNOWN, 4.0, math.nan, math.nan, "", None, None, None, None, None,
)  # fmt: skip
WORSE = Finding(
    parse_condition("max-regression", "goodput=3%"), REGRESSION, "goodput fell by 8 %",
    "useful tokens/s", 920.0, 1000.0, Interval(0.92, 0.9, 0.94), Interval(0.08, 0.06, 0.1),
    0.03, 0.001, 0.002, "by token, as tokens a step doubled", None, None, None, ROLLOUT, PEAK,
)  # fmt: skip
UNCLEAR = Finding(
    parse_condition("max-regression", "step.p95=10%"), UNSURE, "the noise is 20 %, <b>100 %</b>",
    "s", 0.7, 0.65, Interval(1.08, 0.9, 1.3), Interval(0.08, -0.1, 0.3),
    0.1, 0.2, 0.2, "", 40, 2, 3, None, None,
)  # fmt: skip

ALL = Judgement(
    findings=(HOLDS, WORSE, UNCLEAR),
    steps=(30,),
    baseline_steps=(30, 31),
    warmup=(2,),
    baseline_warmup=(2, 1),
    paired=False,
    stages=(ROLLOUT, replace(ROLLOUT, name="τ_R|other")),
    factors=(PEAK,),
    drift=(Drift("tokens a sample", 100.0, 120.0, Interval(1.2, 1.1, 1.3), True),),
    differs=(Difference("devices", 8, 4),),
    between_runs_sd=0.01,
    notes=("a note with \x07 and 50 %",),
    alpha=0.05,
)


def only(*findings: Finding) -> Judgement:
    """The judgement with these findings."""
    return replace(ALL, findings=findings)
