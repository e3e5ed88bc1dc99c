"""Judges runs by a baseline and by conditions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rltrace.analysis.bootstrap import UNKNOWN
from rltrace.analysis.gate.baseline import Baseline
from rltrace.analysis.gate.conditions import Condition
from rltrace.analysis.gate.findings import UNSURE, Finding, Judgement

if TYPE_CHECKING:
    from rltrace.trace.run import Run

ALPHA = 0.05


def judge(
    runs: Sequence[Run],
    baseline: Baseline | None,
    conditions: Sequence[Condition],
    *,
    alpha: float = ALPHA,
    normalise: bool = False,
) -> Judgement:
    """Judges runs of one code (one, or several for a sharper answer) by `baseline`, which only a
    maximal regression needs. `alpha` is how often, at most, an unchanged run is called a
    regression, over all conditions together; `normalise` compares across other hardware and
    settings, per device and token. Errors: `RltraceError` (wrong usage) without a condition or
    without a baseline that one needs; (unreadable) for a run without a complete step, and where
    hardware, framework or settings are not the baseline's and `normalise` is not set."""
    nan = math.nan
    return Judgement(
        findings=tuple(
            Finding(
                condition, UNSURE, "not judged yet", "", nan, nan, UNKNOWN, UNKNOWN,
                condition.limit, nan, nan, "", None, None, None, None, None,
            )
            for condition in conditions
        ),
        steps=(), baseline_steps=(), warmup=(), baseline_warmup=(), paired=False, stages=(),
        factors=(), drift=(), differs=(), between_runs_sd=nan, notes=(), alpha=alpha,
    )  # fmt: skip
