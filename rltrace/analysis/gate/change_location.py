"""Where a change lies: the stage, the factor, work that drifted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from rltrace.analysis.gate import metrics as m
from rltrace.analysis.gate.metrics import Drift, FactorChange, GateMetric, StageChange
from rltrace.analysis.gate.paired_steps import Panel
from rltrace.analysis.gate.regression import TAU, Change, Contrast, change_of, contrast
from rltrace.analysis.stats.resampling import Floats
from rltrace.analysis.timeline.step_figures import UNATTRIBUTED

_DRIFT_LEVEL = 0.99
_ALIKE = 0.02  # work that differs by less is as it was
_SHARPER = 0.8  # another way to look at a figure is worth saying where it has a fifth less error


def stage_changes(panel: Panel, usual: bool = True) -> tuple[StageChange, ...]:
    """Each stage's part of the change of the step, the largest first; none where a run has exposed
    time of no stage. `usual`: without stalls."""
    exposed = [{n for n in run.columns if n.startswith(m.EXPOSED)} for run in panel.runs]
    if not all(exposed):
        return ()
    whole, _ = means(panel, panel.figures(GateMetric("step", m.LENGTH, m.STEPS)))
    found = []
    for column in sorted(set().union(*exposed)):
        name = column[len(m.EXPOSED) :].replace(UNATTRIBUTED, "untraced")
        known = panel.figures(GateMetric(name, column, m.STEPS), usual)
        seconds = np.where(np.isfinite(known), known, 0.0)  # a stage that a run does not have
        base, judged = means(panel, seconds)
        if not base and not judged:
            continue
        more_s = contrast(panel, seconds, tau=TAU * max(base, judged), logs=False).interval()
        found.append(StageChange(name, base, judged, more_s, more_s.over(whole)))
    return tuple(sorted(found, key=lambda one: -abs(one.difference_s.value)))


def factor_changes(panel: Panel) -> tuple[FactorChange, ...]:
    """The factors of goodput over the settled steps; those that all runs know."""
    known = _known(panel, "factor", usual=True)
    return tuple(FactorChange(name, *ends, by.mapped(math.exp)) for name, ends, by in known)


def drift_of(panel: Panel) -> tuple[Drift, ...]:
    """What the work of a step was; properties that all runs know and that have a ratio."""
    found = []
    for name, ends, change in _known(panel, "work"):
        sure = change.interval(_DRIFT_LEVEL).excludes(0.0) and abs(change.value) > _ALIKE
        found.append(Drift(name, *ends, change.mapped(math.exp), sure))
    return tuple(found)


def _known(
    panel: Panel, kind: str, usual: bool = False
) -> Iterator[tuple[str, tuple[float, float], Contrast]]:
    """The rates of a kind that have a contrast: `(name, (before, after), contrast)`."""
    for metric in m.metrics_of(kind).values():
        figures = panel.figures(metric, usual)
        change = contrast(panel, figures)
        if change.known:
            yield metric.name, means(panel, figures), change


def guilty_stage(changes: tuple[StageChange, ...], faster: bool = False) -> StageChange | None:
    """The stage that surely made the step longer (`faster`: shorter), by the most."""
    sure = [one for one in changes if one.difference_s.excludes(0.0)]
    mine = [one for one in sure if (one.difference_s.value < 0) == faster]
    return max(mine, key=lambda one: abs(one.difference_s.value), default=None)


def means(panel: Panel, figures: Floats) -> tuple[float, float]:
    values = figures[0]
    return float(values[: panel.baseline].mean()), float(values[panel.baseline :].mean())


# --- by which figures a metric is judged where the work of the two sides is not the same: seconds
# by the tokens of a step where these drifted, goodput by all tokens trained on where the share that
# carries a signal did. A step has a part that no token changes, so what drifted is a regression
# only where it is one in seconds as well. Where nothing surely drifted, the way to look at a figure
# that has the smaller error is taken: which that is depends on the noise, not on what is found.


def judged_change(panel: Panel, metric: GateMetric, limit: float, drift: Sequence[Drift]) -> Change:
    """The change by which a limit on `metric` is judged, after this drift."""
    changed = {one.name: f"{one.name} went from {one.before:.4g} to {one.after:.4g}"
               for one in drift if one.changed}  # fmt: skip
    tokens, signal = changed.get("tokens a step"), changed.get("tokens with a signal")
    trained, by_token = replace(metric, of=m.TRAINED), replace(metric, per=metric.work)
    useful, counting = metric.of == m.USEFUL, "counting tokens without a signal"

    def change(judged: GateMetric, says: str = "", also: GateMetric | None = None) -> Change:
        too = change_of(panel, also, limit) if also else None
        return replace(change_of(panel, judged, limit), normalised=says, and_also=too)

    if metric.work and tokens:
        return change(by_token, f"by token, as {tokens}", metric)
    pace = GateMetric("steps", m.STEPS, m.LENGTH) if tokens else None
    if useful and signal:
        return change(trained, f"{counting}, as {signal}", pace)
    if metric.of in (m.USEFUL, m.GENERATED) and tokens:
        return change(metric, f"by token, as {tokens}", pace)
    plain = change(metric)
    if not plain.known or not (useful or metric.work):
        return plain
    other, how = (trained, counting) if useful else (by_token, "by token")
    instead = change(other, f"{how}, which is sharper")
    sharper = instead.known and instead.usual.error < _SHARPER * plain.usual.error
    return instead if sharper else plain
