"""Conditions of the judged runs alone: bounds of a figure, the wall.

They are facts of what was measured, and no tests: `lag.p99` was 4 or it was not. A figure is the
mean over the judged runs, of their settled steps; of fewer than `FEWEST` steps nobody knows which
have settled.
"""

from __future__ import annotations

import math

import numpy as np

from rltrace.analysis.gate.conditions import MAXIMUM, WALL, Condition
from rltrace.analysis.gate.findings import PASS, REGRESSION, UNSURE, Finding
from rltrace.analysis.gate.metrics import find_metric
from rltrace.analysis.gate.panel import FEWEST, Panel
from rltrace.analysis.verdict import Verdict
from rltrace.analysis.walls.wall import LIKELY

_SAME = 1e-9  # a bound that is met exactly is met


def find_absolute(condition: Condition, panel: Panel, verdicts: tuple[Verdict, ...]) -> Finding:
    """The finding on a condition that needs no baseline; `panel` and `verdicts` are of the judged
    runs."""
    if condition.kind == WALL:
        return Finding(condition, *_of_wall(condition.subject, verdicts))
    return _of_bound(condition, panel)


def _of_bound(condition: Condition, panel: Panel) -> Finding:
    metric, limit = find_metric(condition.subject), condition.limit
    value = float(np.mean(panel.values(metric)))
    missing = None
    if math.isnan(value):
        outcome, because = UNSURE, f"nobody recorded {metric.name} ({metric.says})"
    elif not panel.enough:
        outcome, missing = UNSURE, FEWEST - min(panel.steps)
        because = f"{metric.name} is {value:.4g} {metric.unit} in {panel.too_few}"
    else:
        most = condition.kind == MAXIMUM
        slack = _SAME * abs(limit)
        met = value <= limit + slack if most else value >= limit - slack
        side = ("at most" if most else "at least") if met else ("above" if most else "below")
        outcome = PASS if met else REGRESSION
        because = f"{metric.name} is {value:.4g} {metric.unit}, {side} {limit:g}"
    return Finding(condition, outcome, because, metric.unit, value, limit=limit, more_steps=missing)


def _of_wall(wanted: str, verdicts: tuple[Verdict, ...]) -> tuple[str, str]:
    """`(outcome, reason)`."""
    named = [[wall.name for wall in one.binding] for one in verdicts]
    other = [one for one, names in zip(verdicts, named, strict=True) if wanted not in names]
    if not other:
        together = sorted({name for names in named for name in names} - {wanted})
        beside = f", together with {', '.join(together)}" if together else ""
        return PASS, f"the wall is {wanted}{beside}"
    one = other[0]
    if one.first is not None:
        sure = all(each.first is not None and each.confidence == LIKELY for each in other)
        says = f"the wall is {' and '.join(w.name for w in one.binding)} ({one.confidence})"
        return REGRESSION if sure else UNSURE, says
    if one.balanced:
        return REGRESSION, "nothing binds: the run is balanced"
    return UNSURE, f"no wall is known to bind: {one.because}"
