"""Where a change lies: the stage, the factor, and the work that drifted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rltrace.analysis.gate import metrics as m
from rltrace.analysis.gate.contrast import TAU, contrast
from rltrace.analysis.gate.findings import Drift, FactorChange, StageChange
from rltrace.analysis.gate.metrics import HIGHER, Metric
from rltrace.analysis.gate.panel import Figures, Panel
from rltrace.analysis.gate.series import WORK

_DRIFT_LEVEL = 0.99
_ALIKE = 0.02  # work that differs by less is as it was

_FACTORS = (
    ("placement efficiency", WORK, m.DEVICES),
    ("useful share", m.USEFUL, m.DECIDED),
    ("peak rate", m.DECIDED, WORK),
)
"""Goodput per device over settled steps is their product. Tokens count in the step that decided
what became of them: what a job generates ahead is no share of what it trains on meanwhile."""

_TOKENS_OF_STEP = "tokens a step"
_SIGNAL_SHARE = "tokens with a signal"
_WORK = (
    ("samples a step", m.SAMPLES, m.STEPS),
    ("tokens a sample", m.GENERATED, m.SAMPLES),
    (_TOKENS_OF_STEP, m.GENERATED, m.STEPS),
    ("tokens trained on a step", m.TRAINED, m.STEPS),
    (_SIGNAL_SHARE, m.USEFUL, m.TRAINED),
    ("reward of a verdict", m.REWARD, m.STEPS),
)
"""What a step did."""


def stage_changes(panel: Panel, usual: bool = True) -> tuple[StageChange, ...]:
    """Each stage's part of the change of the step, the largest first; none where a run has no
    exposed time of any stage, as nobody knows it. `usual`: without stalls."""
    if not all(any(n.startswith(m.EXPOSED) for n in run.columns) for run in panel.runs):
        return ()
    names = sorted({n for run in panel.runs for n in run.columns if n.startswith(m.EXPOSED)})
    step = panel.values(rate("step", m.LENGTH, m.STEPS))
    whole = float(step[: panel.baseline].mean())
    found = []
    for column in names:
        name = column[len(m.EXPOSED) :]
        known = panel.figures(rate(name, column, m.STEPS), usual)
        # A stage that a run does not have took no time there.
        seconds = Figures(*(np.where(np.isfinite(x), x, 0.0) for x in (known.values, known.draws)))
        base, judged = _means(panel, seconds)
        if not base and not judged:
            continue
        of_step = contrast(panel, seconds, tau=TAU * max(base, judged), logs=False)
        more_s = of_step.interval()
        found.append(StageChange(name, base, judged, more_s, more_s.over(whole)))
    return tuple(sorted(found, key=lambda one: -abs(one.difference_s.value)))


def factor_changes(panel: Panel) -> tuple[FactorChange, ...]:
    """The factors of goodput over the settled steps; those that all runs know."""
    found = []
    for name, of, per in _FACTORS:
        figures = panel.figures(rate(name, of, per), usual=True)
        change = contrast(panel, figures)
        if change.known:
            found.append(FactorChange(name, *_means(panel, figures), change.mapped(math.exp)))
    return tuple(found)


def drift_of(panel: Panel) -> tuple[Drift, ...]:
    """What the work of a step was; properties that all runs know and that have a ratio."""
    found = []
    for name, of, per in _WORK:
        figures = panel.figures(rate(name, of, per))
        change = contrast(panel, figures)
        if not change.known:
            continue
        sure = change.interval(_DRIFT_LEVEL).excludes(0.0) and abs(change.value) > _ALIKE
        found.append(Drift(name, *_means(panel, figures), change.mapped(math.exp), sure))
    return tuple(found)


def rate(name: str, of: str, per: str) -> Metric:
    """A figure that is none of a gate's own."""
    return Metric(name, "", HIGHER, of, per, "")


def guilty_stage(changes: tuple[StageChange, ...], faster: bool = False) -> StageChange | None:
    """The stage that surely made the step longer (`faster`: shorter), by the most."""
    sure = [one for one in changes if one.difference_s.excludes(0.0)]
    mine = [one for one in sure if (one.difference_s.value < 0) == faster]
    return max(mine, key=lambda one: abs(one.difference_s.value), default=None)


def guilty_factor(changes: tuple[FactorChange, ...]) -> FactorChange | None:
    """The factor that surely fell, by the most."""
    fell = [one for one in changes if one.ratio.high < 1]
    return min(fell, key=lambda one: one.ratio.value, default=None)


def _means(panel: Panel, figures: Figures) -> tuple[float, float]:
    values = figures.values
    return float(values[: panel.baseline].mean()), float(values[panel.baseline :].mean())


# --- by which figures a metric is judged where the work of the two sides is not the same
# Seconds are held against the tokens of a step where these drifted, and goodput against all tokens
# trained on where the share that carries a signal did. A step has a part that no token changes, so
# what drifted is called a regression only where it is one in seconds as well. Where nothing surely
# drifted, of the two ways to look at a figure the one with the smaller error is taken: which that
# is depends on the noise, and not on what is found.


@dataclass(frozen=True)
class View:
    """`judged` is the figure that is held to the limit; `normalised` says what was made equal
    (empty: nothing); `and_also` (None: none) has to have regressed too. `or_else` is another way to
    look at it, to take where it is sharper."""

    judged: Metric
    normalised: str = ""
    and_also: Metric | None = None
    or_else: View | None = None


def view_of(metric: Metric, drift: Sequence[Drift]) -> View:
    """How to judge `metric` after this drift."""
    changed = {one.name: f"{one.name} went from {one.before:.4g} to {one.after:.4g}"
               for one in drift if one.changed}  # fmt: skip
    tokens, signal = changed.get(_TOKENS_OF_STEP), changed.get(_SIGNAL_SHARE)
    trained, by_token = replace(metric, of=m.TRAINED), replace(metric, per=metric.work)
    useful, counting = metric.of == m.USEFUL, f"counting tokens without a signal, as {signal}"
    if metric.work and tokens:
        return View(by_token, f"by token, as {tokens}", metric)
    pace = rate("steps", m.STEPS, m.LENGTH) if tokens else None
    if useful and signal:
        return View(trained, counting, pace)
    if metric.of in (m.USEFUL, m.GENERATED) and tokens:
        return View(metric, f"by token, as {tokens}", pace)
    if useful:
        says = "counting tokens without a signal, which is sharper"
        return View(metric, or_else=View(trained, says))
    if metric.work:
        return View(metric, or_else=View(by_token, "by token, which is sharper"))
    return View(metric)
