"""Judges runs by a baseline and by conditions.

The statistics are in `regression` (which error rates), `contrast` (what differs between starts of
the same job), `panel` (which steps count, and stalls) and `rltrace.analysis.stats.resampling`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rltrace.analysis.gate import metrics as m
from rltrace.analysis.gate.absolute import find_absolute
from rltrace.analysis.gate.baseline import (
    VERSIONS,
    Baseline,
    differences,
    told,
    unwell,
    wrong_with,
)
from rltrace.analysis.gate.changes import (
    View,
    drift_of,
    factor_changes,
    guilty_factor,
    guilty_stage,
    stage_changes,
    view_of,
)
from rltrace.analysis.gate.conditions import MAX_REGRESSION, WALL, Condition
from rltrace.analysis.gate.contrast import TAU
from rltrace.analysis.gate.findings import (
    PASS,
    REGRESSION,
    UNSURE,
    Drift,
    FactorChange,
    Finding,
    Judgement,
    StageChange,
)
from rltrace.analysis.gate.metrics import Metric, find_metric
from rltrace.analysis.gate.panel import Panel, panel_of
from rltrace.analysis.gate.regression import MISS, Change, change_of, holm, needed
from rltrace.analysis.gate.series import RunSeries, series_of
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.verdict import Verdict, verdict
from rltrace.trace.errors import CANNOT_TELL, RltraceError, WrongUsage

if TYPE_CHECKING:
    from rltrace.trace.run import Run

ALPHA = 0.05
_SHARPER = 0.8  # another way to look at a figure is worth saying where it has a fifth less error


def judge(
    runs: Sequence[Run],
    baseline: Baseline | None,
    conditions: Sequence[Condition],
    *,
    alpha: float = ALPHA,
) -> Judgement:
    """Judges runs of one code (one, or several for a sharper answer) by `baseline`, which only a
    maximal regression needs. `alpha` is how often, at most, an unchanged run is called a
    regression, over all conditions together. Errors: `RltraceError` (wrong usage) without a
    condition or without a baseline that one needs; (cannot tell) for a run without a complete step;
    (unreadable) where hardware, framework or settings are not the baseline's. Another version of a
    framework may be what is judged: it is said, and not refused. A run that is not well is a
    regression."""
    if not runs or not conditions:
        raise WrongUsage("a gate needs a run and a condition to hold it to")
    compared = [one for one in conditions if one.kind == MAX_REGRESSION]
    if compared and baseline is None:
        raise WrongUsage(f"{compared[0].text} needs a baseline to compare with")
    found = [one for run in runs for one in differences(run, baseline)] if baseline else []
    differs = {one.name: one for one in found}.values()
    versions = [one for one in differs if one.name in VERSIONS]
    if foreign := [one for one in differs if one.name not in VERSIONS]:
        raise RltraceError(
            "the baseline is of other hardware, software or work (baseline and run: "
            f"{told(foreign)}); make one here"
        )
    judged = [series_of(run) for run in runs]
    for run, series in zip(runs, judged, strict=True):
        if not series.size:
            why = wrong_with(run)
            raise RltraceError(
                f"{run.path} has no complete step to judge" + (f": {why}" if why else ""),
                CANNOT_TELL,
            )
    before = () if baseline is None else baseline.runs
    if any(one.is_same(two) for one in before for two in judged):
        raise WrongUsage("a run cannot be judged by a baseline that it is in")
    judgement = judge_series(judged, before, conditions, runs, alpha)
    notes = (
        *(f"{one.name} differs: {one.before} in the baseline, {one.after} in the run"
          for one in versions),
        *judgement.notes,
    )  # fmt: skip
    return replace(judgement, notes=notes, unwell=unwell(runs))


def judge_series(
    judged: Sequence[RunSeries],
    before: Sequence[RunSeries],
    conditions: Sequence[Condition],
    runs: Sequence[Run] = (),
    alpha: float = ALPHA,
) -> Judgement:
    """The judgement of series of steps; of `runs`, the judged ones, only a wall asks."""
    alone = panel_of((), judged)
    panel = panel_of(before, judged) if before else alone
    verdicts: tuple[Verdict, ...] = ()
    if any(one.kind == WALL for one in conditions):
        verdicts = tuple(verdict(RunAnalysis(run), predict=False) for run in runs)
    drift = drift_of(panel) if before else ()
    stages = stage_changes(panel) if before else ()
    factors = factor_changes(panel) if before else ()
    changes = {
        i: _compared(panel, one, view_of(find_metric(one.subject), drift))
        for i, one in enumerate(conditions)
        if one.kind == MAX_REGRESSION
    }
    p_values = [changes[i].p_value if i in changes else math.nan for i in range(len(conditions))]
    findings = [
        _find(panel, one, changes[i], p_adjusted, alpha)
        if i in changes
        else find_absolute(one, alone, verdicts)
        for i, (one, p_adjusted) in enumerate(zip(conditions, holm(p_values), strict=True))
    ]
    size = panel.baseline
    return Judgement(
        findings=tuple(
            _with_cause(one, stages, factors) if i in changes and one.outcome == REGRESSION else one
            for i, one in enumerate(findings)
        ),
        steps=panel.steps[size:],
        baseline_steps=panel.steps[:size],
        warmup=panel.warmup[size:],
        baseline_warmup=panel.warmup[:size],
        paired=bool(before) and panel.paired,
        stages=stages,
        factors=factors,
        drift=drift,
        notes=_notes(panel, drift) if before else (),
        alpha=alpha,
    )


@dataclass(frozen=True)
class _Compared:
    """A condition's figure as it is judged, and what has to have regressed with it."""

    normalised: str
    change: Change
    and_also: Change | None

    @property
    def p_value(self) -> float:
        """Of "no worse than the baseline" in all that has to have regressed; NaN: not known."""
        if not self.change.known:
            return math.nan
        also = self.and_also.p_value if self.and_also and self.and_also.known else 0.0
        return max(self.change.p_value, also)


def _compared(panel: Panel, condition: Condition, view: View) -> _Compared:
    change = change_of(panel, view.judged, condition.limit)
    if view.or_else is not None and change.known:
        other = change_of(panel, view.or_else.judged, condition.limit)
        if other.known and other.usual.error < _SHARPER * change.usual.error:
            view, change = view.or_else, other
    also = change_of(panel, view.and_also, condition.limit) if view.and_also else None
    return _Compared(view.normalised, change, also)


def _find(
    panel: Panel, condition: Condition, judged: _Compared, p_adjusted: float, alpha: float
) -> Finding:
    metric, change = find_metric(condition.subject), judged.change
    values = panel.values(metric)
    base, value = (float(x.mean()) for x in (values[: panel.baseline], values[panel.baseline :]))
    if not change.known:
        outcome, because = _without_ratio(metric, base, value)
        return Finding(condition, outcome, because, metric.unit, value, base, limit=condition.limit)
    outcome = change.outcome(p_adjusted, alpha)
    by_token_only = (
        judged.and_also is not None
        and outcome != REGRESSION
        and change.outcome(change.p_value, alpha) == REGRESSION
    )
    if by_token_only or not panel.enough:
        outcome = UNSURE
    shown, more = change.shown(alpha), needed(change)
    would_tell = more if outcome == UNSURE and not by_token_only else {}
    return Finding(
        condition=condition,
        outcome=outcome,
        because=(
            "each token takes longer, the steps do not: with other work in a step that may be "
            "the part of it that tokens do not change"
            if by_token_only
            else _because(change, outcome, more, panel)
        ),
        unit=metric.unit,
        value=value,
        baseline=base,
        ratio=shown.mapped(math.exp),
        worse=shown.mapped(change.share),
        limit=condition.limit,
        p_value=judged.p_value,
        p_adjusted=p_adjusted,
        normalised=judged.normalised,
        more_steps=would_tell.get("more_steps"),
        more_runs=would_tell.get("more_runs"),
        more_baselines=would_tell.get("more_baselines"),
    )


def _with_cause(
    found: Finding, stages: tuple[StageChange, ...], factors: tuple[FactorChange, ...]
) -> Finding:
    """With the stage that the metric is of, else the one that made the step longer; and the factor
    of goodput that fell."""
    metric = find_metric(found.condition.subject)
    stage = None
    family, _, name = metric.of.partition(".")
    if f"{family}." in (m.BUSY, m.EXPOSED):
        stage = next((one for one in stages if one.name == name), None)
    elif m.LENGTH in (metric.of, metric.per) or metric.per == m.DEVICES:
        stage = guilty_stage(stages)
    goodput = metric.per in (m.LENGTH, m.DEVICES)
    return replace(found, stage=stage, factor=guilty_factor(factors) if goodput else None)


def _notes(panel: Panel, drift: tuple[Drift, ...]) -> tuple[str, ...]:
    notes = [f"{one.name} differ: {one.before:.4g} in the baseline, {one.after:.4g} in the run"
             for one in drift if one.changed]  # fmt: skip
    if panel.baseline == 1:
        notes.append(
            f"one run in the baseline: that starts of the job differ by {100 * TAU:g} % (standard "
            "deviation) is assumed, and not measured; more runs make it sharper"
        )
    return tuple(notes)


def _because(change: Change, outcome: str, more: dict[str, int], panel: Panel) -> str:
    limit, most = (change.share(change.sign * logs) for logs in (change.edge, change.most))
    if outcome == REGRESSION:
        stalled = change.shown(1.0) is change.plain and change.plain is not change.usual
        where = "in steps that stall, not in the usual ones" if stalled else "surely worse"
        return f"{where}, and by more than {100 * limit:g} %"
    if outcome == PASS:
        if most <= 0:
            return f"no worse, with {100 * (1 - MISS):.0f} % confidence"
        return f"at most {100 * most:.1f} % worse, with {100 * (1 - MISS):.0f} % confidence"
    if not panel.enough:
        return panel.too_few
    measured = change.share(change.usual.value)
    towards = "worse" if measured >= 0 else "better"
    beyond_noise = "" if more else ", and no number of runs that one makes would tell"
    return (
        f"measured {100 * abs(measured):.1f} % {towards}, and by chance it may be up to "
        f"{100 * most:.1f} % worse: the noise is too large for a limit of {100 * limit:g} %"
        f"{beyond_noise}"
    )


def _without_ratio(metric: Metric, base: float, value: float) -> tuple[str, str]:
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
