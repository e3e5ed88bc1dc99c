"""What the framework logs beside what was traced, for those who ask (`--own-figures`)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rltrace.adapters import find_adapters
from rltrace.analysis.own_figures import STEP, ComparedFigure
from rltrace.analysis.summary import Summary
from rltrace.report import units
from rltrace.report.layout import Column, Section, listed, numbers, table
from rltrace.trace.texts import packaged_tables

if TYPE_CHECKING:
    from rltrace.hooks.hook import OwnFigure
    from rltrace.trace.run import Run

_MOST_NAMES = 3
_SMALL = 0.1


def figures_of(run: Run) -> tuple[OwnFigure, ...]:
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
    for settings in packaged_tables("adapters/settings") if targets else ():
        if settings["framework"] in frameworks:
            found += map(_of_settings, settings.get("figure", ()))
    return tuple(found)


def _of_settings(figure: dict[str, Any]) -> OwnFigure:
    from rltrace.hooks.hook import OwnFigure

    told: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in figure.items()}
    return OwnFigure(**told)


def own_figures_section(summary: Summary) -> Section:
    figures, title = summary.own_figures, "The framework's own figures"
    if not figures:
        return Section(title, ("This run logged none that is known to mislead.",))
    rows = (
        (
            figure.name,
            _shown(figure, figure.own_value) if figure.is_logged else "logs none",
            _shown(figure, figure.traced_value),
            _what(figure),
            # Where one decimal would say nothing, one figure.
            f"{figure.ratio:.1g}×" if 0 < figure.ratio < _SMALL else units.ratio(figure.ratio),
            units.count(figure.steps),
        )
        for figure in figures
    )
    line = "Medians over the same steps: what is logged, and what ran."
    if summary.run.imported:
        line = "Only the log is known, not what ran: its figures cannot be checked."
    names: dict[str, list[str]] = {}
    for figure in figures:
        names.setdefault(figure.reason, []).append(figure.name)
    reasons = tuple(f"{listed(of)}: {reason}." for reason, of in names.items())
    columns = (*numbers("logged", "traced"), Column("which is", least_width=76))
    grid = table(rows, "logged as", *columns, *numbers("ratio", ("steps", 68)))
    return Section(title, (line,), grid, reasons)


def _shown(figure: ComparedFigure, value: float) -> str:
    return units.size(value) if figure.unit == "B" else units.seconds(value)


def _what(figure: ComparedFigure) -> str:
    if figure.unit == "B":
        return "bytes sent"
    return "the step" if figure.stages == (STEP,) else " ∪ ".join(figure.stages)


def pointer(summary: Summary) -> Iterator[str]:
    """At most one line, for a report without the section."""
    names = [figure.name for figure in summary.own_figures if figure.misleads]
    if names:
        more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
        which = listed([*(f"“{name}”" for name in names[:_MOST_NAMES]), *more])
        differ = "differs" if len(names) == 1 else "differ"
        yield f"In the log {which} {differ} from what ran: `rltrace report --own-figures`."
