"""A finding's reason, in one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.gate.findings import PASS, REGRESSION, UNSURE
from rltrace.analysis.gate.metrics import Metric
from rltrace.analysis.gate.panel import FEWEST, Panel
from rltrace.analysis.gate.regression import MISS, Change, Needed, needed, share_worse


@dataclass(frozen=True)
class Judged:
    """A condition's figure as it is judged, and what has to have regressed with it."""

    metric: Metric
    normalised: str
    change: Change
    and_also: Change | None

    @property
    def p_value(self) -> float:
        """Of "no worse than the baseline" in all that has to have regressed."""
        also = self.and_also.p_value if self.and_also and self.and_also.known else 0.0
        return max(self.change.p_value, also)


def enough(panel: Panel) -> bool:
    """Whether each run has the steps to tell its own noise."""
    return min(panel.steps) >= FEWEST


def too_few(panel: Panel) -> str:
    """How many steps the shortest run has, and how many are needed."""
    n = min(panel.steps)
    return f"{n} settled step{'s' * (n != 1)}, and at least {FEWEST} are needed of each run"


def because_of(judged: Judged, outcome: str, by_token_only: bool, panel: Panel) -> str:
    """Why this is the outcome."""
    change = judged.change
    better, limit = change.metric.better, share_worse(change.edge, change.metric.better)
    most = share_worse(change.most, better)
    if by_token_only:
        return (
            "each token takes longer, the steps do not: with other work in a step that may be "
            "the part of it that tokens do not change"
        )
    if outcome == REGRESSION:
        stalled = change.shown(1.0) is change.plain and change.plain is not change.usual
        where = "in steps that stall, not in the usual ones" if stalled else "surely worse"
        return f"{where}, and by more than {100 * limit:g} %"
    if outcome == PASS:
        if most <= 0:
            return f"no worse, with {100 * (1 - MISS):.0f} % confidence"
        return f"at most {100 * most:.1f} % worse, with {100 * (1 - MISS):.0f} % confidence"
    if not enough(panel):
        return too_few(panel)
    if most < change.edge:  # only the stalls of the run stand against it
        return "usual steps are not worse, but the run stalls more"
    measured = share_worse(change.sign * change.usual.value, better)
    towards = "worse" if measured >= 0 else "better"
    hopeless = needed(change) == Needed()
    beyond_noise = ", and no number of runs that one makes would tell" if hopeless else ""
    if measured > limit:
        return (
            f"{100 * measured:.1f} % worse is beyond {100 * limit:g} %, and may be chance: the "
            f"noise is too large{beyond_noise}"
        )
    return (
        f"measured {100 * abs(measured):.1f} % {towards}, and by chance it may be up to "
        f"{100 * most:.1f} % worse: the noise is too large for a limit of {100 * limit:g} %"
        f"{beyond_noise}"
    )


def without_ratio(metric: Metric, base: float, value: float) -> tuple[str, str]:
    """`(outcome, reason)` for a figure that has no ratio."""
    unknown = [
        side for side, known in (("the baseline", base), ("the run", value)) if math.isnan(known)
    ]
    if unknown:
        says = f"{' and '.join(unknown)} did not record {metric.name} ({metric.says})"
        return UNSURE, says
    if base == value:
        return PASS, f"{value:g} {metric.unit} in both"
    return UNSURE, (
        f"{base:g} {metric.unit} before and {value:g} now have no ratio: state a bound with --max "
        "or --min"
    )
