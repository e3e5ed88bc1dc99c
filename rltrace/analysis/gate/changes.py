"""Where a change lies: which stage and which factor made it, and what work drifted."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rltrace.analysis.bootstrap import UNKNOWN, Interval
from rltrace.analysis.gate import metrics as m
from rltrace.analysis.gate.contrast import TAU, Contrast, contrast
from rltrace.analysis.gate.findings import Drift, FactorChange, StageChange
from rltrace.analysis.gate.metrics import HIGHER, Metric
from rltrace.analysis.gate.panel import Figures, Panel
from rltrace.analysis.gate.series import HOST, WORK

LEVEL = 0.95
_DRIFT_LEVEL = 0.99
_ALIKE = 0.02  # work that differs by less is as it was

_FACTORS = (
    ("placement efficiency", WORK, m.DEVICES),
    ("useful share", m.USEFUL, m.DECIDED),
    ("peak rate", m.DECIDED, WORK),
)
"""Goodput per device over settled steps is their product. Availability and the freshness weight are
of whole runs, and not of steps. Tokens count in the step that decided what became of them: what a
job generates ahead of its steps is no share of what it trains on in them."""

TOKENS_OF_STEP = "tokens a step"
SIGNAL_SHARE = "tokens with a signal"
HOST_CORES = "cores busy on the hosts"
_WORK = (
    ("samples a step", m.SAMPLES, m.STEPS),
    ("tokens a sample", m.GENERATED, m.SAMPLES),
    (TOKENS_OF_STEP, m.GENERATED, m.STEPS),
    ("tokens trained on a step", m.TRAINED, m.STEPS),
    (SIGNAL_SHARE, m.USEFUL, m.TRAINED),
    ("reward of a verdict", m.REWARD, m.STEPS),
    (HOST_CORES, HOST, m.LENGTH),
)
"""What a step did, and beside what: other programs on the host are no work of it, and make no
figure normal, but take its cores."""


def stage_changes(panel: Panel) -> tuple[StageChange, ...]:
    """Each stage's part of the change of the step, the largest first; none where a run has no
    exposed time of any stage, as nobody knows it."""
    if not all(any(n.startswith(m.EXPOSED) for n in run.columns) for run in panel.runs):
        return ()
    names = sorted({n for run in panel.runs for n in run.columns if n.startswith(m.EXPOSED)})
    step = panel.values(rate("step", m.LENGTH, m.STEPS))
    whole = float(step[: panel.baseline].mean())
    found = []
    for column in names:
        name = column[len(m.EXPOSED) :]
        seconds = _or_none(panel.figures(rate(name, column, m.STEPS), usual=True))
        base, judged = _means(panel, seconds)
        of_step = contrast(panel, seconds, tau=TAU * max(base, judged), logs=False)
        busy = contrast(panel, panel.figures(rate(name, m.BUSY + name, m.STEPS), usual=True))
        by_step = of_step.interval(LEVEL)
        found.append(
            StageChange(
                name, base, judged,
                Interval(*(x / whole for x in (by_step.value, by_step.low, by_step.high))),
                _mapped(busy, math.exp),
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda one: -abs(one.of_step.value)))


def factor_changes(panel: Panel) -> tuple[FactorChange, ...]:
    """The factors of goodput over the settled steps; those that all runs know."""
    found = []
    for name, of, per in _FACTORS:
        figures = panel.figures(rate(name, of, per), usual=True)
        change = contrast(panel, figures)
        if change.known:
            found.append(FactorChange(name, *_means(panel, figures), _mapped(change, math.exp)))
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
        ratio = _mapped(change, math.exp)
        found.append(Drift(name, *_means(panel, figures), ratio, sure))
    return tuple(found)


def rate(name: str, of: str, per: str) -> Metric:
    """A figure that is none of a gate's own."""
    return Metric(name, "", HIGHER, of, per, "")


def guilty_stage(changes: tuple[StageChange, ...]) -> StageChange | None:
    """The stage that surely made the step longer, by the most."""
    longer = [one for one in changes if one.of_step.low > 0]
    return max(longer, key=lambda one: one.of_step.value, default=None)


def guilty_factor(changes: tuple[FactorChange, ...]) -> FactorChange | None:
    """The factor that surely fell, by the most."""
    fell = [one for one in changes if one.ratio.high < 1]
    return min(fell, key=lambda one: one.ratio.value, default=None)


def _means(panel: Panel, figures: Figures) -> tuple[float, float]:
    values = figures.values
    return float(values[: panel.baseline].mean()), float(values[panel.baseline :].mean())


def _or_none(figures: Figures) -> Figures:
    """A stage that a run does not have took no time there."""
    values, draws = figures.values, figures.draws
    return Figures(
        np.where(np.isfinite(values), values, 0.0), np.where(np.isfinite(draws), draws, 0.0)
    )


def _mapped(change: Contrast, by: Callable[[float], float]) -> Interval:
    found = change.interval(LEVEL)
    if not change.known:
        return UNKNOWN
    return Interval(by(found.value), by(found.low), by(found.high))
