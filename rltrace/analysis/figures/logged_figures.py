"""What the log of an imported run says of its samples, in figures of the framework's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rltrace.analysis.run_analysis import RunAnalysis


def quoted(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True)
class LoggedFigure:
    """A figure of the log, `metric` by name: over `n` records, the first and the last of them."""

    metric: str
    n: int
    mean: float
    first: float
    last: float


def logged_figures(analysis: RunAnalysis) -> Mapping[str, LoggedFigure]:
    """What is told (`known` of a log table: reward, truncated, ...) -> the figure that tells it."""
    imported = analysis.run.meta.get("imported")
    known = imported.get("known") if isinstance(imported, dict) else None
    found: dict[str, LoggedFigure] = {}
    for what, metric in known.items() if isinstance(known, dict) else ():
        ((n, *values),) = analysis.run.ask(
            "select count(*), avg(value), arg_min(value, time_ns), arg_max(value, time_ns) "
            "from raw_samples join names on names.id = counter "
            f"where text = {quoted(str(metric))} and time_ns > 0 and isfinite(value)"
        )
        if n:
            found[str(what)] = LoggedFigure(str(metric), n, *values)
    return found
