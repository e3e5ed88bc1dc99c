"""Conditions of the judged runs alone: bounds of a figure, the wall, anti-patterns.

They are facts of what was measured, and no tests: `lag.p99` was 4 or it was not. A figure is the
mean over the judged runs, of their settled steps; of fewer than `FEWEST` steps nobody knows which
have settled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.bootstrap import UNKNOWN
from rltrace.analysis.gate.conditions import ANTI_PATTERNS, ANY, FORBID, MAXIMUM, WALL, Condition
from rltrace.analysis.gate.findings import PASS, REGRESSION, UNSURE, Finding
from rltrace.analysis.gate.metrics import find_metric
from rltrace.analysis.gate.panel import FEWEST, Panel
from rltrace.analysis.gate.words import enough, too_few
from rltrace.analysis.lint import FOUND, NOT_FOUND, Lint
from rltrace.analysis.summary import summarize
from rltrace.analysis.verdict import Verdict
from rltrace.analysis.walls.wall import LIKELY

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_SAME = 1e-9  # a bound that is met exactly is met


class Verdicts:
    """The verdicts on the judged runs, found when one is first asked for."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    @cached_property
    def all(self) -> tuple[Verdict, ...]:
        """One for each run."""
        return tuple(summarize(run, predict=False).verdict for run in self._runs)


def find_absolute(condition: Condition, panel: Panel, verdicts: Verdicts) -> Finding:
    """The finding on a condition that needs no baseline; `panel` is of the judged runs."""
    if condition.kind == WALL:
        return _of_wall(condition, verdicts.all)
    if condition.kind == FORBID:
        return _of_pattern(condition, verdicts.all)
    return _of_bound(condition, panel)


def _of_bound(condition: Condition, panel: Panel) -> Finding:
    metric = find_metric(condition.subject)
    values = panel.values(metric)
    value = float(np.mean(values))
    if math.isnan(value):
        because = f"nobody recorded {metric.name} ({metric.says})"
        return finding(condition, UNSURE, because, unit=metric.unit)
    if not enough(panel):
        because = f"{metric.name} is {value:.4g} {metric.unit} in {too_few(panel)}"
        unsure = finding(condition, UNSURE, because, metric.unit, value)
        return replace(unsure, more_steps=FEWEST - min(panel.steps))
    most = condition.kind == MAXIMUM
    slack = _SAME * abs(condition.limit)
    met = value <= condition.limit + slack if most else value >= condition.limit - slack
    side = ("at most" if most else "at least") if met else ("above" if most else "below")
    because = f"{metric.name} is {value:.4g} {metric.unit}, {side} {condition.limit:g}"
    return finding(condition, PASS if met else REGRESSION, because, metric.unit, value)


def _of_wall(condition: Condition, verdicts: tuple[Verdict, ...]) -> Finding:
    named = [[wall.name for wall in one.binding] for one in verdicts]
    if all(condition.subject in names for names in named):
        together = sorted({n for names in named for n in names} - {condition.subject})
        beside = f", together with {', '.join(together)}" if together else ""
        return finding(condition, PASS, f"the wall is {condition.subject}{beside}")
    other = [one for one, names in zip(verdicts, named, strict=True)
             if condition.subject not in names]  # fmt: skip
    one = other[0]
    if one.first is not None:
        says = f"the wall is {' and '.join(w.name for w in one.binding)} ({one.confidence})"
        sure = all(each.first is not None and each.confidence == LIKELY for each in other)
        return finding(condition, REGRESSION if sure else UNSURE, says)
    if one.balanced:
        return finding(condition, REGRESSION, "nothing binds: the run is balanced")
    return finding(condition, UNSURE, f"no wall is known to bind: {one.because}")


def _of_pattern(condition: Condition, verdicts: tuple[Verdict, ...]) -> Finding:
    wanted = ANTI_PATTERNS.get(condition.subject)
    lints = [
        lint for one in verdicts for lint in one.lints if wanted is None or lint.name == wanted
    ]
    found = [lint for lint in lints if lint.verdict == FOUND]
    if found:
        return finding(condition, REGRESSION, "; ".join(_told(lint) for lint in found))
    clear = [lint for lint in lints if lint.verdict == NOT_FOUND]
    unknown = sorted({lint.name for lint in lints} - {lint.name for lint in clear})
    if condition.subject == ANY and clear:
        unsaid = f"; of {len(unknown)} nobody knows: {', '.join(unknown)}" if unknown else ""
        return finding(condition, PASS, f"none was found{unsaid}")
    if unknown or not lints:
        says = "; ".join(dict.fromkeys(_told(lint) for lint in lints if lint not in clear))
        return finding(condition, UNSURE, says)
    return finding(condition, PASS, _told(clear[0]))


def _told(lint: Lint) -> str:
    return f"{lint.name}: {lint.says}"


def finding(
    condition: Condition,
    outcome: str,
    because: str,
    unit: str = "",
    value: float = math.nan,
) -> Finding:
    """A finding that rests on no comparison."""
    nan = math.nan
    return Finding(
        condition=condition,
        outcome=outcome,
        because=because,
        unit=unit,
        value=value,
        baseline=nan,
        ratio=UNKNOWN,
        worse=UNKNOWN,
        limit=condition.limit,
        p_value=nan,
        p_adjusted=nan,
        normalised="",
        more_steps=None,
        more_runs=None,
        more_baselines=None,
        stage=None,
        factor=None,
    )
