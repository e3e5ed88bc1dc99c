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
from rltrace.analysis.gate.series import HOST, WORK

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

_TOKENS_OF_STEP = "tokens a step"
_SIGNAL_SHARE = "tokens with a signal"
_WORK = (
    ("samples a step", m.SAMPLES, m.STEPS),
    ("tokens a sample", m.GENERATED, m.SAMPLES),
    (_TOKENS_OF_STEP, m.GENERATED, m.STEPS),
    ("tokens trained on a step", m.TRAINED, m.STEPS),
    (_SIGNAL_SHARE, m.USEFUL, m.TRAINED),
    ("reward of a verdict", m.REWARD, m.STEPS),
    ("cores busy on the hosts", HOST, m.LENGTH),
)
"""What a step did, and beside what: other programs on the host are no work of it, and make no
figure normal, but take its cores."""


def stage_changes(panel: Panel) -> tuple[StageChange, ...]:
    """Each stage's part of the change of the step, the largest first; none where a run has no
    exposed time of any stage, as nobody knows it."""
    if not all(any(n.startswith(m.EXPOSED) for n in run.columns) for run in panel.runs):
        return ()
    names = sorted({n for run in panel.runs for n in run.columns if n.startswith(m.EXPOSED)})
    step = panel.values(_rate("step", m.LENGTH, m.STEPS))
    whole = float(step[: panel.baseline].mean())
    found = []
    for column in names:
        name = column[len(m.EXPOSED) :]
        known = panel.figures(_rate(name, column, m.STEPS), usual=True)
        # A stage that a run does not have took no time there.
        seconds = Figures(*(np.where(np.isfinite(x), x, 0.0) for x in (known.values, known.draws)))
        base, judged = _means(panel, seconds)
        of_step = contrast(panel, seconds, tau=TAU * max(base, judged), logs=False)
        busy = contrast(panel, panel.figures(_rate(name, m.BUSY + name, m.STEPS), usual=True))
        by_step = of_step.interval().over(whole)
        found.append(StageChange(name, base, judged, by_step, busy.mapped(math.exp)))
    return tuple(sorted(found, key=lambda one: -abs(one.of_step.value)))


def factor_changes(panel: Panel) -> tuple[FactorChange, ...]:
    """The factors of goodput over the settled steps; those that all runs know."""
    found = []
    for name, of, per in _FACTORS:
        figures = panel.figures(_rate(name, of, per), usual=True)
        change = contrast(panel, figures)
        if change.known:
            found.append(FactorChange(name, *_means(panel, figures), change.mapped(math.exp)))
    return tuple(found)


def drift_of(panel: Panel) -> tuple[Drift, ...]:
    """What the work of a step was; properties that all runs know and that have a ratio."""
    found = []
    for name, of, per in _WORK:
        figures = panel.figures(_rate(name, of, per))
        change = contrast(panel, figures)
        if not change.known:
            continue
        sure = change.interval(_DRIFT_LEVEL).excludes(0.0) and abs(change.value) > _ALIKE
        found.append(Drift(name, *_means(panel, figures), change.mapped(math.exp), sure))
    return tuple(found)


def _rate(name: str, of: str, per: str) -> Metric:
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
    """`judged` is the figure that is held to the limit; `normalised` says what was made equal
    (empty: nothing); `and_also` (None: none) has to have regressed too. `or_else` is another way to
    look at it, to take where it is sharper."""

    judged: Metric
    normalised: str = ""
    and_also: Metric | None = None
    or_else: View | None = None


def view_of(metric: Metric, drift: Sequence[Drift], scaled: bool) -> View:
    """How to judge `metric` after this drift; `scaled`: across other hardware or settings, for each
    device and token."""
    changed = {one.name: f"{one.name} went from {one.before:.4g} to {one.after:.4g}"
               for one in drift if one.changed}  # fmt: skip
    tokens, signal = changed.get(_TOKENS_OF_STEP), changed.get(_SIGNAL_SHARE)
    trained, by_token = replace(metric, of=m.TRAINED), replace(metric, per=metric.work)
    useful, counting = metric.of == m.USEFUL, f"counting tokens without a signal, as {signal}"
    if scaled:
        says = "for each device and token"
        if useful and signal:
            metric, says = trained, f"{says}, {counting}"
        return View(_scaled(metric), says)
    if metric.work and tokens:
        return View(by_token, f"by token, as {tokens}", metric)
    pace = _rate("steps", m.STEPS, m.LENGTH) if tokens else None
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


def _scaled(metric: Metric) -> Metric:
    """Seconds become device-seconds a token, and tokens a second those of a device."""
    if metric.per == m.LENGTH:
        return replace(metric, per=m.DEVICES)
    if metric.of == m.LENGTH:
        return replace(metric, of=m.DEVICES, per=m.GENERATED)
    return replace(metric, per=metric.work) if metric.work else metric
