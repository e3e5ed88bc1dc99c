"""Two runs: which factor of goodput and which stage made the difference.

It is the gate's comparison of one run with one, over their steady steps: stages add up to the step,
step = tokens a step × seconds a token, and goodput is the product of its factors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.alarms.alarm import CRASH
from rltrace.analysis.cascade import Cascade
from rltrace.analysis.differing import Difference, differing, settings_that_differ
from rltrace.analysis.gate import metrics as m
from rltrace.analysis.gate.baseline import framework_facts, hardware_of
from rltrace.analysis.gate.changes import (
    drift_of,
    factor_changes,
    guilty_stage,
    stage_changes,
)
from rltrace.analysis.gate.contrast import TAU, contrast
from rltrace.analysis.gate.findings import Drift, FactorChange, StageChange
from rltrace.analysis.gate.panel import Panel, panel_of
from rltrace.analysis.gate.series import RunSeries, columns_of
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.interval import UNKNOWN, Interval
from rltrace.analysis.step_figures import step_figures
from rltrace.trace.errors import CANNOT_TELL, RltraceError
from rltrace.trace.run import Run

_ALIKE = 0.02  # a factor that changes by less than this is as it was


@dataclass(frozen=True)
class Comparison:
    """Two runs, `steps` steady ones of each. `difference_s` is the second's step minus the first's,
    `step_ratio` over it: the product of `work_ratio` (tokens a step) and `pace_ratio` (seconds a
    token), NaN where no tokens were recorded. `rate_ratio` is that of useful tokens a second.
    Stages are in the order of their difference. `alarms` say of each run what forbids advice on it
    or ended it."""

    steps: tuple[int, ...]
    before_s: float
    after_s: float
    difference_s: Interval
    step_ratio: Interval
    work_ratio: Interval
    pace_ratio: Interval
    rate_ratio: Interval
    stages: tuple[StageChange, ...]
    factors: tuple[FactorChange, ...]
    drift: tuple[Drift, ...]
    settings: tuple[Difference, ...]
    devices: tuple[Difference, ...]
    alarms: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def stage(self) -> StageChange | None:
        """The stage that made most of the step's difference; None where none surely did."""
        return guilty_stage(self.stages, faster=self.difference_s.value < 0)

    @property
    def factor(self) -> FactorChange | None:
        """The factor that changed most, surely or by the only value there is; None: none did."""
        logs = {
            one: abs(math.log(one.ratio.value))
            for one in self.factors
            if one.ratio.value > 0 and (one.once or one.ratio.excludes(1.0))
        }
        most = max(logs, key=lambda one: logs[one], default=None)
        return most if most is not None and logs[most] > _ALIKE else None


def compare(first: Run, second: Run) -> Comparison:
    """What differs from `first` to `second`. Errors: `RltraceError` where one has no step."""
    a, b = RunAnalysis(first), RunAnalysis(second)
    panel = panel_of([_series(a)], [_series(b)], settled=True)
    lengths = panel.figures(m.Metric("step", m.LENGTH, m.STEPS))
    before_s, after_s = lengths[0].tolist()
    step_ratio = _ratio(panel, m.LENGTH, m.STEPS)
    tokens = m.GENERATED
    work = _ratio(panel, tokens, m.STEPS)
    if not work.known:
        tokens = m.TRAINED
        work = _ratio(panel, tokens, m.STEPS)
    step_s = contrast(panel, lengths, tau=TAU * max(before_s, after_s), logs=False)
    return Comparison(
        steps=panel.steps,
        before_s=before_s,
        after_s=after_s,
        difference_s=step_s.interval(),
        step_ratio=step_ratio,
        work_ratio=work,
        pace_ratio=step_ratio
        if work == Interval(1.0, 1.0, 1.0)
        else _ratio(panel, m.LENGTH, tokens),
        rate_ratio=_ratio(panel, m.USEFUL, m.LENGTH),
        stages=stage_changes(panel, usual=False),
        factors=_factors(a.cascade, b.cascade, panel),
        drift=drift_of(panel),
        settings=settings_that_differ(first, second),
        devices=differing(_facts(first), _facts(second)),
        alarms=(_unwell(a), _unwell(b)),
    )


def _series(analysis: RunAnalysis) -> RunSeries:
    figures = step_figures(analysis, analysis.steps)
    if figures is None:
        raise RltraceError(f"{analysis.run.path} has no complete step to compare", CANNOT_TELL)
    numbers = [analysis.steps.windows[place].step for place in analysis.steady]
    return RunSeries("", 0, np.array(numbers, np.int64), columns_of(figures))


def _unwell(analysis: RunAnalysis) -> tuple[str, ...]:
    alarms = analysis.health.alarms
    return tuple(alarm.says for alarm in alarms if alarm.forbids or alarm.kind == CRASH)


def _facts(run: Run) -> dict[str, object]:
    probed = "probe" in (run.meta.get("settings") or {})
    return {**hardware_of(run), **framework_facts(run), "probed": probed}


def _ratio(panel: Panel, of: str, per: str) -> Interval:
    return contrast(panel, panel.figures(m.Metric("", of, per))).mapped(math.exp)


def _factors(a: Cascade | None, b: Cascade | None, panel: Panel) -> tuple[FactorChange, ...]:
    """The factors of whole runs, each with the interval that its steps give it."""
    if a is None or b is None:
        return ()
    by_step = {one.name: one.ratio for one in factor_changes(panel)}
    by_step["freshness weight"] = _ratio(panel, m.ESS, m.STEPS)
    changes = []
    for one, other in zip(a.factors, b.factors, strict=True):
        value = other.value / one.value if one.value else math.nan
        steps = by_step.get(one.name, UNKNOWN)
        ends = [value * end / steps.value for end in (steps.low, steps.high)]
        told = one.name in by_step
        change = Interval(value, *([1.0, 1.0] if told and value == 1.0 else ends))
        once = not told and not math.isnan(value)
        changes.append(FactorChange(one.name, one.value, other.value, change, once))
    return tuple(changes)
