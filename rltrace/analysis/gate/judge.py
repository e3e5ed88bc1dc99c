"""Judges runs by a baseline and by conditions.

The statistics are in `regression` (which error rates, what differs between starts of the same job),
`panel` (which steps count, and stalls) and `rltrace.analysis.stats.resampling`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rltrace.analysis.gate import change_location
from rltrace.analysis.gate import metrics as m
from rltrace.analysis.gate.baseline import (
    VERSIONS,
    Baseline,
    complete_series,
    differences,
    told,
    unwell,
)
from rltrace.analysis.gate.paired_steps import FEWEST, Panel, RunSeries, panel_of
from rltrace.analysis.gate.regression import MISS, TAU, Change, holm, needed
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import Verdict, verdict
from rltrace.analysis.walls.wall import HOW_SURE, LIKELY
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.read.run import OpenedRun

ALPHA = 0.05  # how often, at most, an unchanged run is called a regression, over all conditions
_BY_TOKEN_ONLY = (
    "each token takes longer, but the steps do not: a step does other work now, and a part of it "
    "may not depend on tokens"
)


def judge(
    runs: Sequence[OpenedRun], baseline: Baseline | None, conditions: Sequence[m.Condition]
) -> m.Judgement:
    """Judges runs of one code (one, or several for a sharper answer) by `baseline`, which only a
    maximal regression needs. Errors: `RltraceError` (wrong usage) without a condition or without a
    baseline that one needs; (cannot tell) for a run without a complete step; (unreadable) where
    hardware, framework or settings are not the baseline's. Another version of a framework may be
    what is judged: it is said, and not refused. A run with an alarm is a regression."""
    if not runs or not conditions:
        raise WrongUsage("a gate needs a run and a condition to hold it to")
    compared = [one for one in conditions if one.kind == m.MAX_REGRESSION]
    if compared and baseline is None:
        raise WrongUsage(f"{compared[0].text} needs a baseline to compare with")
    found = [one for run in runs for one in differences(run, baseline)] if baseline else []
    differs = {one.name: one for one in found}.values()
    versions = [one for one in differs if one.name in VERSIONS]
    if foreign := [one for one in differs if one.name not in VERSIONS]:
        other = f"other hardware, software or work (baseline and run: {told(foreign)})"
        raise RltraceError(f"the baseline is of {other}; make one here")
    judged = complete_series(runs, "judge")
    before = () if baseline is None else baseline.runs
    if any(one.is_same(two) for one in before for two in judged):
        raise WrongUsage("a run cannot be judged by a baseline that it is in")
    judgement = judge_series(judged, before, conditions, runs)
    notes = [f"{one.name} differs: {one.before} in the baseline, {one.after} in the run"
             for one in versions]  # fmt: skip
    return replace(judgement, notes=(*notes, *judgement.notes), alarms=unwell(runs))


def judge_series(
    judged: Sequence[RunSeries], before: Sequence[RunSeries], conditions: Sequence[m.Condition],
    runs: Sequence[OpenedRun] = (),
) -> m.Judgement:  # fmt: skip
    """The judgement of series of steps; of `runs`, the judged ones, only a wall asks."""
    alone = panel_of((), judged)
    panel = panel_of(before, judged) if before else alone
    verdicts: tuple[Verdict, ...] = ()
    if any(one.kind == m.WALL for one in conditions):
        verdicts = tuple(verdict(RunAnalysis(run), predict=False) for run in runs)
    drift = change_location.drift_of(panel) if before else ()
    stages = change_location.stage_changes(panel) if before else ()
    factors = change_location.factor_changes(panel) if before else ()
    compared = [one for one in conditions if one.kind == m.MAX_REGRESSION]
    asked = [(m.find_metric(one.subject), one.limit) for one in compared]
    made = [change_location.judged_change(panel, *what, drift) for what in asked]
    tested = zip(made, holm([change.p_value for change in made]), strict=True)
    findings = []
    for one in conditions:
        if one.kind == m.MAX_REGRESSION:
            found = _of_change(panel, one, *next(tested))
            regressed = found.outcome == m.REGRESSION
            findings.append(_with_cause(found, stages, factors) if regressed else found)
        elif one.kind == m.WALL:
            findings.append(m.Finding(one, *_of_wall(one.subject, verdicts)))
        else:
            findings.append(_of_bound(one, alone))
    size = panel.baseline
    return m.Judgement(
        findings=tuple(findings),
        steps=panel.steps[size:], baseline_steps=panel.steps[:size],
        warmup=panel.warmup[size:], baseline_warmup=panel.warmup[:size],
        paired=bool(before) and panel.paired,
        stages=stages, factors=factors, drift=drift,
        notes=_notes(panel, drift) if before else (),
        alpha=ALPHA,
    )  # fmt: skip


def _of_change(
    panel: Panel, condition: m.Condition, change: Change, p_adjusted: float
) -> m.Finding:
    metric = m.find_metric(condition.subject)
    base, value = change_location.means(panel, panel.figures(metric))
    if not change.known:
        found = *_without_ratio(metric, base, value), metric.unit, value, base
        return m.Finding(condition, *found, limit=condition.limit)
    outcome = change.outcome(p_adjusted, ALPHA)
    by_token_only = change.and_also is not None and outcome != m.REGRESSION
    by_token_only &= change.outcome(change.own_p_value, ALPHA) == m.REGRESSION
    if by_token_only or not panel.enough:
        outcome = m.UNSURE
    shown, more = change.shown(ALPHA), needed(panel, change)
    because = _because(change, outcome, bool(more), panel)
    would_tell: dict[str, Any] = {**more} if outcome == m.UNSURE else {}
    if by_token_only:
        would_tell, because = {}, _BY_TOKEN_ONLY
    return m.Finding(
        condition, outcome, because, metric.unit, value, base,
        ratio=shown.mapped(math.exp), worse_share=shown.mapped(change.share),
        limit=condition.limit, p_value=change.p_value, p_adjusted=p_adjusted,
        normalised=change.normalised, **would_tell,
    )  # fmt: skip


def _with_cause(
    found: m.Finding, stages: tuple[m.StageChange, ...], factors: tuple[m.FactorChange, ...]
) -> m.Finding:
    """With the stage of the metric, or that made the step longer, and the factor that fell."""
    metric, stage = m.find_metric(found.condition.subject), None
    family, _, name = metric.of.partition(".")
    if f"{family}." in (m.BUSY, m.EXPOSED):
        stage = next((one for one in stages if one.name == name), None)
    elif m.LENGTH in (metric.of, metric.per) or metric.per == m.DEVICES:
        stage = change_location.guilty_stage(stages)
    is_goodput = metric.per in (m.LENGTH, m.DEVICES)
    fell = [one for one in factors if is_goodput and one.ratio.high < 1]
    factor = min(fell, key=lambda one: one.ratio.value, default=None)
    return replace(found, stage=stage, factor=factor)


def _notes(panel: Panel, drift: tuple[m.Drift, ...]) -> tuple[str, ...]:
    notes = [f"{one.name} differ: {one.before:.4g} in the baseline, {one.after:.4g} in the run"
             for one in drift if one.changed]  # fmt: skip
    if panel.baseline == 1:
        by = f"{100 * TAU:g} % (standard deviation); more runs measure it"
        taken = f"the baseline has one run, so it is assumed that starts of the job differ by {by}"
        notes.append(taken)
    return tuple(notes)


def _because(change: Change, outcome: str, more: bool, panel: Panel) -> str:
    limit, most = (change.share(change.sign * logs) for logs in (change.edge, change.most))
    if outcome == m.REGRESSION:
        stalled = change.shown(1.0) is change.plain and change.plain is not change.usual
        where = "in steps that stall, not in the usual ones" if stalled else "surely worse"
        return f"{where}, and by more than {100 * limit:g} %"
    if outcome == m.PASS:
        how = "no worse" if most <= 0 else f"at most {100 * most:.1f} % worse"
        return f"{how}, with {100 * (1 - MISS):.0f} % confidence"
    if not panel.enough:
        return panel.too_few
    measured = change.share(change.usual.value)
    towards = "worse" if measured >= 0 else "better"
    return (
        f"measured {100 * abs(measured):.1f} % {towards}, and by chance it may be up to "
        f"{100 * most:.1f} % worse: the noise is too large for a limit of {100 * limit:g} %"
        f"{'' if more else ', and no practical number of runs would tell'}"
    )


def _without_ratio(metric: m.GateMetric, base: float, value: float) -> tuple[str, str]:
    """`(outcome, reason)` for a figure that has no ratio."""
    sides = {"the baseline": base, "the run": value}
    if unknown := " and ".join(side for side, known in sides.items() if math.isnan(known)):
        return m.UNSURE, f"{unknown} did not record {metric.name} ({metric.says})"
    if base == value:
        return m.PASS, f"{value:g} {metric.unit} in both"
    both = f"{base:g} {metric.unit} before and {value:g} now"
    return m.UNSURE, f"{both} have no ratio: state a bound with --max or --min"


# --- conditions of the judged runs alone: bounds of a figure, the wall. They are facts of what was
# measured, and no tests. A figure is the mean over the judged runs, of their settled steps; of
# fewer than `FEWEST` steps nobody knows which have settled.

_SAME = 1e-9  # a bound that is met exactly is met


def _of_bound(condition: m.Condition, panel: Panel) -> m.Finding:
    metric, limit = m.find_metric(condition.subject), condition.limit
    value = float(panel.figures(metric)[0].mean())
    missing = None
    if math.isnan(value):
        outcome, because = m.UNSURE, f"{metric.name} was not recorded ({metric.says})"
    elif not panel.enough:
        outcome, missing = m.UNSURE, FEWEST - min(panel.steps)
        because = f"{metric.name} is {value:.4g} {metric.unit} in {panel.too_few}"
    else:
        most = condition.kind == m.MAXIMUM
        slack = _SAME * abs(limit)
        met = value <= limit + slack if most else value >= limit - slack
        side = ("at most" if most else "at least") if met else ("above" if most else "below")
        outcome = m.PASS if met else m.REGRESSION
        because = f"{metric.name} is {value:.4g} {metric.unit}, {side} {limit:g}"
    return m.Finding(
        condition, outcome, because, metric.unit, value, limit=limit, more_steps=missing
    )


def _of_wall(wanted: str, verdicts: tuple[Verdict, ...]) -> tuple[str, str]:
    """`(outcome, reason)`."""
    named = [[wall.name for wall in one.binding] for one in verdicts]
    other = [one for one, names in zip(verdicts, named, strict=True) if wanted not in names]
    if not other:
        together = sorted({name for names in named for name in names} - {wanted})
        beside = f", together with {', '.join(together)}" if together else ""
        return m.PASS, f"the wall is {wanted}{beside}"
    one = other[0]
    if one.first is not None:
        sure = all(each.first is not None and each.confidence == LIKELY for each in other)
        how = HOW_SURE[one.confidence]
        says = f"the wall is {' and '.join(w.name for w in one.binding)} ({how})"
        return m.REGRESSION if sure else m.UNSURE, says
    if one.balanced:
        return m.REGRESSION, "there is no wall: the run is balanced"
    return m.UNSURE, f"the wall cannot be told: {one.because}"
