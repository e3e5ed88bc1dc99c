"""The figures that a framework logs itself, beside the traced ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rltrace.analysis.figures.devices import version_of
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.timeline.stage_chains import Seconds
from rltrace.analysis.timeline.steps import Steps
from rltrace.trace.compact.stored_rows import quoted
from rltrace.trace.read.framework_figure import OwnFigure, satisfies
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.vocabulary import Stage

STEP = "step"

_FACTOR = 1.5
_SHARE_OF_STEP = 0.01


@dataclass(frozen=True)
class ComparedFigure:
    """An own figure and the traced one (the time of `stages`), medians over `steps` steady steps
    for which both are known, else over those for which one is; NaN: unknown. `unit` is "s" or "B",
    `ratio` own over traced. `misleads`: they differ by over half and over 1 % of the step."""

    name: str
    unit: str
    stages: tuple[str, ...]
    is_logged: bool
    own_value: float
    traced_value: float
    steps: int
    ratio: float
    misleads: bool
    reason: str


def compare_figures(
    analysis: RunAnalysis, figures: Sequence[OwnFigure]
) -> tuple[ComparedFigure, ...]:
    """An imported run was laid out from such figures: nothing is there to hold them against."""
    run, steps = analysis.run, analysis.steps
    logged = _logged(run, steps, figures)
    steady = list(steps.steady)
    step_s = _median(analysis.breakdown.steps_s[steady])
    found: dict[tuple[str, ...], ComparedFigure] = {}
    for figure in figures:
        key = figure.metrics or (figure.name,)
        if key in found or not _fits(run, figure, analysis.placement, logged):
            continue
        names = tuple(name for name in figure.metrics if name in logged)
        own = _added([logged[name] for name in names], len(steps.windows)) * figure.scale
        if not (names or figure.name) or _median(own[steady]) > figure.at_most:
            continue
        true = _true(analysis, figure)
        if figure.since_last and names:
            true = _means_between(own, true)
        if names or not np.isnan(true).all():
            found[key] = _compared(figure, names, own[steady], true[steady], step_s)
    return tuple(found.values())


def _compared(
    figure: OwnFigure, names: tuple[str, ...], own: Seconds, true: Seconds, step_s: float
) -> ComparedFigure:
    both = ~np.isnan(own) & ~np.isnan(true)
    if both.any():
        own, true = own[both], true[both]
    one, other = _median(own), _median(true)
    ratio = one / other if other else math.nan
    apart = figure.unit == "s" and bool(names) and not 1 / _FACTOR <= ratio <= _FACTOR
    return ComparedFigure(
        name=" + ".join(names) or figure.name,
        unit=figure.unit,
        stages=figure.stages,
        is_logged=bool(names),
        own_value=one,
        traced_value=other,
        steps=int(max((~np.isnan(own)).sum(), (~np.isnan(true)).sum())),
        ratio=ratio,
        misleads=apart and abs(one - other) > _SHARE_OF_STEP * step_s,
        reason=figure.reason,
    )


def _fits(run: OpenedRun, figure: OwnFigure, placement: str, logged: dict[str, Seconds]) -> bool:
    stated = [run.meta.get("framework_version"), *map(version_of, run.processes)]
    return (
        satisfies(next((str(one) for one in stated if one), ""), figure.versions)
        and (not figure.placements or placement in figure.placements)
        and (not figure.beside or figure.beside in logged)
    )


def _logged(run: OpenedRun, steps: Steps, figures: Iterable[OwnFigure]) -> dict[str, Seconds]:
    """What was logged under each name that figures speak of, by the step that had begun last."""
    wanted = {name for figure in figures for name in (*figure.metrics, figure.beside) if name}
    named = ", ".join(map(quoted, sorted(wanted)))
    if not named:
        return {}
    values: dict[str, Seconds] = {}
    rows = run.ask(
        "select text, time_ns, value from raw_samples join names on names.id = counter "
        f"where time_ns > 0 and text in ({named}) order by time_ns"
    )
    for name, time_ns, value in rows:
        of_name = values.setdefault(name, np.full(len(steps.windows), np.nan))
        place = int(np.searchsorted(steps.starts_ns, time_ns)) - 1
        if place >= 0:
            of_name[place] = value
    return values


def _added(parts: list[Seconds], n: int) -> Seconds:
    """What several metrics add up to by step; NaN where none was logged."""
    if not parts:
        return np.full(n, np.nan)
    table = np.stack(parts)
    return np.where(np.isnan(table).all(axis=0), np.nan, np.nansum(table, axis=0))


def _true(analysis: RunAnalysis, figure: OwnFigure) -> Seconds:
    steps = analysis.steps
    unknown = np.full(len(steps.windows), np.nan)
    if steps.whole_run or analysis.run.meta.get("imported"):
        return unknown
    if figure.unit == "B":  # an update need not lie in the step that it is counted with
        syncs = analysis.syncs
        return unknown if syncs is None else np.full_like(unknown, syncs.bytes_per_update.p50)
    if figure.stages == (STEP,):
        return analysis.breakdown.steps_s
    stages = [Stage[name.upper()] for name in figure.stages]
    seen = any(analysis.activity.processes_of_stage.get(stage) for stage in stages)
    return analysis.breakdown.runs_s(stages) if seen else unknown


def _means_between(own: Seconds, true: Seconds) -> Seconds:
    """At each step with an own figure, the mean of the true one over the steps since the last."""
    means = np.full_like(true, np.nan)
    for before, at in pairwise([-1, *np.flatnonzero(~np.isnan(own))]):
        means[at] = true[before + 1 : at + 1].mean()
    return means


def _median(values: Seconds) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else math.nan
