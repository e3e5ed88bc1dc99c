"""What was recorded, what was not, and what tracing cost the job."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from rltrace.adapters import find_adapters
from rltrace.analysis.figures.coverage import Coverage, OwnCost
from rltrace.analysis.figures.framework_figures import STEP, ComparedFigure
from rltrace.analysis.stats.confidence_interval import Interval
from rltrace.analysis.summary import Summary
from rltrace.analysis.timeline.probe import HALF_WIDTH, IN_FULL, Probe, ProbedStage
from rltrace.report import run_description, units
from rltrace.report.layout import Section, TableColumn, labelled, listed, numbers, table
from rltrace.report.sections.verdict_section import model_check
from rltrace.trace.read.framework_figure import OwnFigure
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.run_dir import RECORDING_STOPPED
from rltrace.trace.untrusted_files import packaged_tables

_MOST_PROBLEMS = 12
_MOST_NAMES = 3
_SMALL = 0.1
_TOO_WIDE = 1.0  # an exposed part with a wider interval says nothing
_IMMATERIAL = 0.05  # a stage whose share is surely less need not be known better


def coverage_section(summary: Summary) -> Section:
    seen = summary.coverage
    reasons: dict[str, list[str]] = {}
    for stage in seen.unseen:
        reasons.setdefault(stage.reason, []).append(labelled(stage.name, stage.symbol))
    _, facts = run_description.facts(summary)
    lines = [f"{facts}."]
    if check := model_check(summary.verdict, summary.steps.step_s.mean):
        lines.append(check)
    lines += [f"Not recorded: {', '.join(names)}: {why}." for why, names in reasons.items()]
    if seen.never_hooked:
        lines.append(f"Asked for, never put in place: --hook {listed(seen.never_hooked)}.")
    lines += _problem_lines(seen)
    if seen.clock_bound_ns < 0:
        lines.append("Clocks: one node could not be aligned with the others; its times may be off.")
    elif seen.clock_bound_ns:
        within = units.seconds(seen.clock_bound_ns / 1e9)
        lines.append(f"Clocks: nodes are aligned within {within}.")
    if not summary.run.imported:  # it was not traced
        lines.append(_own_cost(summary.own_cost))
    return Section("What was recorded", tuple(lines))


def _problem_lines(seen: Coverage) -> Iterator[str]:
    told = [problem for problem in seen.problems if problem.what != RECORDING_STOPPED]
    for problem in told[:_MOST_PROBLEMS]:
        targets = ", ".join(problem.targets)
        more = f" and {problem.more_targets} more" if problem.more_targets else ""
        where = f" ({targets}{more})" if targets else ""
        detail = f": {problem.detail}" if problem.detail else ""
        times = f" × {problem.count}" if problem.count > 1 else ""
        times += " or more" if problem.at_least else ""
        yield f"{problem.what}{times}{where}{detail}".rstrip(".") + "."
    if len(told) > _MOST_PROBLEMS:
        others = units.plural(len(told) - _MOST_PROBLEMS, "more kind")
        yield f"{others} of problems: `rltrace info` lists all."


def _own_cost(cost: OwnCost) -> str:
    if not cost.events:
        return "Tracing cost: no event was recorded."
    source = "measured in the job" if cost.calibrated else "a usual value"
    events = units.plural(cost.events, "event")
    text = f"Tracing cost: {events} × {cost.event_cost_ns:,.0f} ns ({source})"
    if math.isnan(cost.share):
        return f"{text}; its share of the job's time is not known."
    return f"{text}. It delays the job by at most {units.share(cost.share)}."


def figures_of(run: OpenedRun) -> tuple[OwnFigure, ...]:
    """What is known of the framework's own figures: by its adapter, and in our settings of it."""
    frameworks = {str(run.meta.get("framework")), *(str(p.adapter) for p in run.processes)}
    targets = find_adapters() if frameworks - {"None"} else {}
    found: list[OwnFigure] = []
    for framework in sorted(frameworks & set(targets)):
        module, _, name = targets[framework].partition(":")
        try:
            found += getattr(import_module(module), name).figures
        except Exception:  # somebody else's adapter is broken: `rltrace doctor` says how
            continue
    for settings in packaged_tables("adapters/*/settings.toml") if targets else ():
        if settings["framework"] in frameworks:
            for figure in settings.get("figure", ()):
                told: dict[str, Any] = dict(figure)
                told |= {k: tuple(v) for k, v in figure.items() if isinstance(v, list)}
                found.append(OwnFigure(**told))
    return tuple(found)


def own_figures_section(summary: Summary) -> Section:
    figures, title = summary.own_figures, "The framework's own figures"
    if not figures:
        return Section(title, ("This run logged none that is known to mislead.",))
    rows = []
    for figure in figures:
        logged = _shown(figure, figure.own_value) if figure.is_logged else "logs none"
        traced = _shown(figure, figure.traced_value)
        what = "the step" if figure.stages == (STEP,) else " ∪ ".join(figure.stages)
        what = "bytes sent" if figure.unit == "B" else what
        # Where one decimal would say nothing, one figure.
        small = 0 < figure.ratio < _SMALL
        ratio = f"{figure.ratio:.1g}×" if small else units.ratio(figure.ratio)
        rows.append((figure.name, logged, traced, what, ratio, units.count(figure.steps)))
    line = "Medians over the same steps: what is logged, and what ran."
    if summary.run.imported:
        line = "Only the log is known, not what ran: its figures cannot be checked."
    names: dict[str, list[str]] = {}
    for figure in figures:
        names.setdefault(figure.reason, []).append(figure.name)
    reasons = tuple(f"{listed(of)}: {reason}." for reason, of in names.items())
    columns = (*numbers("logged", "traced"), TableColumn("which is", least_width=76))
    grid = table(rows, "logged as", *columns, *numbers("ratio", ("steps", 68)))
    return Section(title, (line,), grid, reasons)


def _shown(figure: ComparedFigure, value: float) -> str:
    return units.size(value) if figure.unit == "B" else units.seconds(value)


def pointer(summary: Summary) -> Iterator[str]:
    """At most one line, for a report without the section."""
    names = [f"“{figure.name}”" for figure in summary.own_figures if figure.misleads]
    if names:
        more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
        which = listed([*names[:_MOST_NAMES], *more])
        differ = "differs" if len(names) == 1 else "differ"
        yield f"In the log {which} {differ} from what ran: `rltrace report --own-figures`."


def probe_section(probe: Probe) -> Section:
    columns = numbers(*(("steps", 76), ("by", 68), "exposed part", "computed", "share", "computed"))
    grid = table(map(_cells, probe.stages), "delayed", *columns)
    return Section("Probe", tuple(_lines(probe)), grid, tuple(_notes(probe)))


def _cells(stage: ProbedStage) -> tuple[str, ...]:
    part = stage.stage_exposed_share
    exposed = "unclear" if part.half_width > _TOO_WIDE else _interval(part)
    parts = exposed, f"{stage.computed_stage_exposed_share:.2f}"
    shares = _interval(stage.share), f"{stage.computed_share:.2f}"
    return (stage.name, str(stage.dosed_steps), units.seconds(stage.dose_s), *parts, *shares)


def _interval(estimate: Interval) -> str:
    if not estimate.known:
        return units.UNKNOWN
    return f"{estimate.value:.2f} ± {estimate.half_width:.2f}"


def _lines(probe: Probe) -> Iterator[str]:
    odd, spent = probe.outlier_steps, probe.spent_share
    left_out = f" ({units.plural(odd, 'outlier')} left out)" if odd else ""
    dose, steps = units.share(probe.dose_share), units.plural(probe.steps, "step")
    delayed = f"delayed by {dose} of its own time in a quarter of {steps}{left_out}"
    yield f"Each stage was {delayed}, at random (seed {probe.seed})."
    if spent.known:
        yield (
            f"A step without delays takes {units.seconds(probe.step_s)}. Delays made steps "
            f"{units.share(spent.value)} ± {units.share(spent.half_width)} longer (budget "
            f"{units.share(probe.budget_share)}); the other figures of this report include them."
        )


def _notes(probe: Probe) -> Iterator[str]:
    if probe.stages:
        yield f"Computed: from the stage's {probe.computed_by}. Measured: from the delays alone."
    for stage in probe.stages:
        if stage.because:
            yield f"{stage.name}: unknown, {stage.because}."
        elif stage.given_share < IN_FULL:
            given = f"only {units.share(stage.given_share)} of its delays took effect"
            yield f"{stage.name}: {given}; its figures are rough."
        if stage.contradicts:
            name = labelled(stage.name, stage.symbol)
            yield f"{name}: the probe contradicts the computed share; believe the probe."
    steps = [
        f"{stage.name} {units.count(more)}"
        for stage in probe.stages
        if stage.share.known and stage.share.high > _IMMATERIAL
        if (more := stage.more_steps_for(HALF_WIDTH))
    ]
    if steps:
        yield f"More steps for ± {HALF_WIDTH} of the exposed part: {listed(steps)}."
    if probe.refused_steps:
        left_out = units.plural(probe.refused_steps, "step")
        yield f"No delay in {left_out}: the budget was spent."
    if probe.not_seen:
        yield f"Asked to be delayed, but never seen: {listed(probe.not_seen)}."
