"""Judges runs by a baseline and by conditions.

The statistics are in `regression` (which error rates), `contrast` (what differs between starts of
the same job), `panel` (which steps), `stalls`, `settling` and `resampling`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rltrace.analysis.bootstrap import Interval
from rltrace.analysis.differing import Difference
from rltrace.analysis.gate import metrics as m
from rltrace.analysis.gate.absolute import Verdicts, find_absolute, finding
from rltrace.analysis.gate.baseline import Baseline, differences, told, unwell, wrong_with
from rltrace.analysis.gate.changes import (
    LEVEL,
    SIGNAL_SHARE,
    TOKENS_OF_STEP,
    drift_of,
    factor_changes,
    guilty_factor,
    guilty_stage,
    rate,
    stage_changes,
)
from rltrace.analysis.gate.conditions import MAX_REGRESSION, Condition
from rltrace.analysis.gate.contrast import TAU, Contrast, contrast
from rltrace.analysis.gate.findings import (
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
from rltrace.analysis.gate.regression import (
    Change,
    change_of,
    holm,
    needed,
    share_worse,
)
from rltrace.analysis.gate.series import RunSeries, series_of
from rltrace.analysis.gate.words import Judged, because_of, enough, without_ratio
from rltrace.analysis.gate.workload import VERSIONS
from rltrace.trace.errors import CANNOT_TELL, RltraceError, WrongUsage
from rltrace.trace.sampled import only_some

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
    without a baseline that one needs; (cannot tell) for a run without a complete step; (unreadable)
    where hardware, framework or settings are not the baseline's and `normalise` is not set. Another
    version of a framework may be what is judged: it is said, and not refused. A run that is not
    well is a regression."""
    if not runs or not conditions:
        raise WrongUsage("a gate needs a run and a condition to hold it to")
    compared = [one for one in conditions if one.kind == MAX_REGRESSION]
    if compared and baseline is None:
        raise WrongUsage(f"{compared[0].text} needs a baseline to compare with")
    found = () if baseline is None else _differences(runs, baseline)
    versions = tuple(one for one in found if one.name in VERSIONS)
    foreign = tuple(one for one in found if one not in versions)
    if foreign and not normalise:
        raise RltraceError(
            "the baseline is of other hardware, software or work (baseline and run: "
            f"{told(foreign)}); make one here, or allow it with --normalise"
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
    judgement = judge_series(judged, before, conditions, Verdicts(runs), alpha, foreign)
    return replace(
        judgement,
        notes=(*_of_versions(versions), *_of_samples(runs), *judgement.notes),
        unwell=unwell(runs),
    )


def _of_samples(runs: Sequence[Run]) -> Iterator[str]:
    """What a share of the samples does not tell of the judged runs."""
    for some in dict.fromkeys(only_some(run.meta) for run in runs):
        if some:
            yield (
                f"{some}: what counts tokens or samples is unknown; the step can be held to a limit"
            )


def _differences(runs: Sequence[Run], baseline: Baseline) -> tuple[Difference, ...]:
    found = {one.name: one for run in runs for one in differences(run, baseline)}
    return tuple(found.values())


def judge_series(
    judged: Sequence[RunSeries],
    before: Sequence[RunSeries],
    conditions: Sequence[Condition],
    verdicts: Verdicts,
    alpha: float = ALPHA,
    differs: tuple[Difference, ...] = (),
) -> Judgement:
    """The judgement of series of steps; `judge` without reading runs."""
    alone = panel_of((), judged)
    panel = panel_of(before, judged) if before else alone
    seen = _look(panel, bool(differs)) if before else _Seen(panel, (), (), (), False)
    changes = {
        i: _change(seen, one) for i, one in enumerate(conditions) if one.kind == MAX_REGRESSION
    }
    adjusted = holm([_p_value(changes.get(i)) for i in range(len(conditions))])
    findings = tuple(
        _find(seen, one, changes[i], adjusted[i], alpha)
        if i in changes
        else find_absolute(one, alone, verdicts)
        for i, one in enumerate(conditions)
    )
    size = panel.baseline
    step = contrast(panel, panel.figures(_STEP, usual=True)) if before else None
    return Judgement(
        findings=findings,
        steps=panel.steps[size:],
        baseline_steps=panel.steps[:size],
        warmup=panel.warmup[size:],
        baseline_warmup=panel.warmup[:size],
        paired=bool(before) and panel.paired,
        stages=seen.stages,
        factors=seen.factors,
        drift=seen.drift,
        differs=differs,
        between_runs_sd=math.sqrt(step.of_starts) if step and step.known else math.nan,
        notes=_notes(seen) if before else (),
        alpha=alpha,
    )


_STEP = find_metric("step")


@dataclass(frozen=True)
class _Seen:
    """What the two sides are beside each other, whatever is asked of them."""

    panel: Panel
    stages: tuple[StageChange, ...]
    factors: tuple[FactorChange, ...]
    drift: tuple[Drift, ...]
    scaled: bool


def _look(panel: Panel, scaled: bool) -> _Seen:
    return _Seen(panel, stage_changes(panel), factor_changes(panel), drift_of(panel), scaled)


def _change(seen: _Seen, condition: Condition) -> Judged:
    metric = find_metric(condition.subject)
    view = view_of(metric, seen.drift, seen.scaled)
    change, normalised = change_of(seen.panel, view.judged, condition.limit), view.normalised
    if view.or_else is not None and change.known:
        other = change_of(seen.panel, view.or_else, condition.limit)
        if other.known and other.usual.error < _SHARPER * change.usual.error:
            change, normalised = other, view.or_normalised
    also = None
    if view.and_also is not None:
        also = change_of(seen.panel, view.and_also, condition.limit)
    return Judged(metric, normalised, change, also)


def _p_value(judged: Judged | None) -> float:
    return judged.p_value if judged is not None and judged.change.known else math.nan


def _find(
    seen: _Seen, condition: Condition, judged: Judged, p_adjusted: float, alpha: float
) -> Finding:
    metric, change, panel = judged.metric, judged.change, seen.panel
    values = panel.values(metric)
    base, value = (float(x.mean()) for x in (values[: panel.baseline], values[panel.baseline :]))
    empty = replace(finding(condition, UNSURE, "", metric.unit, value), baseline=base)
    if not change.known:
        outcome, because = without_ratio(metric, base, value)
        return replace(empty, outcome=outcome, because=because)
    outcome = change.outcome(p_adjusted, alpha)
    also = judged.and_also
    by_token_only = (
        also is not None
        and outcome != REGRESSION
        and change.outcome(change.p_value, alpha) == REGRESSION
    )
    if by_token_only or not enough(panel):
        outcome = UNSURE
    shown = change.shown(alpha)
    low_high = shown.interval(LEVEL)
    ratio = Interval(*(math.exp(x) for x in (low_high.value, low_high.low, low_high.high)))
    more = needed(change)
    unsure = outcome == UNSURE and not by_token_only
    regressed = outcome == REGRESSION
    return replace(
        empty,
        outcome=outcome,
        because=because_of(judged, outcome, by_token_only, panel),
        ratio=ratio,
        worse=_worse(shown, change),
        p_value=judged.p_value,
        p_adjusted=p_adjusted,
        normalised=judged.normalised,
        more_steps=more.steps if unsure else None,
        more_runs=more.runs if unsure else None,
        more_baselines=more.baselines if unsure else None,
        stage=_stage(seen, metric) if regressed else None,
        factor=guilty_factor(seen.factors) if regressed and metric.per in _GOODPUT else None,
    )


_SHARPER = 0.8  # another way to look at a figure is worth saying where it has a fifth less error
_GOODPUT = (m.LENGTH, m.DEVICES)


def _stage(seen: _Seen, metric: Metric) -> StageChange | None:
    """The stage that a metric is of, else the one that made the step longer."""
    for family in (m.BUSY, m.EXPOSED):
        if metric.of.startswith(family):
            named = [s for s in seen.stages if s.name == metric.of[len(family) :]]
            return named[0] if named else None
    if m.LENGTH in (metric.of, metric.per) or metric.per == m.DEVICES:
        return guilty_stage(seen.stages)
    return None


def _worse(shown: Contrast, change: Change) -> Interval:
    """The change for the worse as a share, with its interval."""
    found = shown.interval(LEVEL)
    ends = (change.sign * x for x in (found.value, found.low, found.high))
    value, one, other = (share_worse(x, change.metric.better) for x in ends)
    return Interval(value, min(one, other), max(one, other))


def _of_versions(differs: Sequence[Difference]) -> Iterator[str]:
    for one in differs:
        yield f"{one.name} differs: {one.before} in the baseline, {one.after} in the run"


def _notes(seen: _Seen) -> tuple[str, ...]:
    panel = seen.panel
    notes = [f"{one.name} differ: {one.before:.4g} in the baseline, {one.after:.4g} in the run"
             for one in seen.drift if one.changed]  # fmt: skip
    if panel.baseline == 1:
        notes.append(
            f"one run in the baseline: that starts of the job differ by {100 * TAU:g} % (standard "
            "deviation) is assumed, and not measured; more runs make it sharper"
        )
    usual = max(panel.warmup[: panel.baseline])
    longest = max(panel.warmup[panel.baseline :])
    if not panel.paired and longest > usual + 2:
        notes.append(
            f"warm-up took {longest} steps in the run and at most {usual} in the baseline; it is "
            "left out"
        )
    return tuple(notes)


# --- by which figures a metric is judged where the work of the two sides is not the same
# Longer answers take longer, and that is no regression. So seconds are held against the tokens of
# a step where these drifted, and goodput against all tokens trained on where the share that
# carries a signal did (the policy learns, and more groups are all right or all wrong).
#
# A step has a part that no token changes. With fewer tokens a step each of them then takes longer
# though nothing is slower, so what drifted is called a regression only where it is one in seconds
# as well; a pass is one by token alone.
#
# Where nothing surely drifted, chance in the work still is noise in a figure. Of the two ways to
# look at it the one with the smaller error is taken: which that is depends on the noise, and not
# on what is found.


@dataclass(frozen=True)
class View:
    """`judged` is the figure that is held to the limit; `and_also` (None: none) has to have
    regressed too. `normalised` says what was made equal (empty: nothing). `or_else` is another way
    to look at it, of which the same says `or_normalised`, to take where it is sharper."""

    judged: Metric
    and_also: Metric | None = None
    normalised: str = ""
    or_else: Metric | None = None
    or_normalised: str = ""


def view_of(metric: Metric, drift: Sequence[Drift], scaled: bool) -> View:
    """How to judge `metric` after this drift; `scaled`: across other hardware or settings, for each
    device and token."""
    changed = {one.name: one for one in drift if one.changed}
    tokens, signal = changed.get(TOKENS_OF_STEP), changed.get(SIGNAL_SHARE)
    if scaled:
        says = "for each device and token"
        if metric.of == m.USEFUL and signal is not None:
            metric, says = replace(metric, of=m.TRAINED), f"{says}, {_counting(signal)}"
        return View(_scaled(metric), None, says)
    if metric.work and tokens is not None:
        by_token = replace(metric, per=metric.work)
        return View(by_token, metric, f"by token, as {_told(tokens)}")
    if metric.of == m.USEFUL and signal is not None:
        return View(replace(metric, of=m.TRAINED), _pace(tokens), _counting(signal))
    if metric.of in (m.USEFUL, m.GENERATED) and tokens is not None:
        return View(metric, _pace(tokens), f"by token, as {_told(tokens)}")
    if metric.of == m.USEFUL:
        says = "counting tokens without a signal, which is sharper"
        return View(metric, or_else=replace(metric, of=m.TRAINED), or_normalised=says)
    if metric.work:
        by_token = replace(metric, per=metric.work)
        return View(metric, or_else=by_token, or_normalised="by token, which is sharper")
    return View(metric)


def _pace(tokens: Drift | None) -> Metric | None:
    return None if tokens is None else replace(rate("step", m.STEPS, m.LENGTH), name="steps")


def _scaled(metric: Metric) -> Metric:
    """Seconds become device-seconds a token, and tokens a second those of a device."""
    if metric.per == m.LENGTH:
        return replace(metric, per=m.DEVICES)
    if metric.of == m.LENGTH:
        return replace(metric, of=m.DEVICES, per=m.GENERATED)
    return replace(metric, per=metric.work) if metric.work else metric


def _counting(signal: Drift) -> str:
    return f"counting tokens without a signal, as {_told(signal)}"


def _told(drift: Drift) -> str:
    return f"{drift.name} went from {drift.before:.4g} to {drift.after:.4g}"
