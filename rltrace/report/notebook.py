"""A run as a person holds it in a notebook: the tables, the named queries, the summary, figures."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.trace import run as trace

if TYPE_CHECKING:
    import duckdb
    from matplotlib.axes import Axes

    from rltrace.analysis.summary import Summary


def open_run(path: str | Path) -> Run:
    """Opens a run directory, or a run at a URL. Errors: `RltraceError` when it is none, or newer
    than this rltrace."""
    if isinstance(path, str) and "://" in path:
        from rltrace.trace.fetched import fetch

        return Run(fetch(path))
    return Run(Path(path))


class Run(trace.Run):
    """An opened run, with what people ask of it first.

    Each `plot_...` draws on `ax`, or on a new figure, and returns the Axes. Errors: `RltraceError`
    where matplotlib is not installed. Where the trace has nothing to draw, the Axes say so.
    """

    def query(self, name: str) -> duckdb.DuckDBPyRelation:
        """A query of the pack (docs/queries.md): `run.query("@lag_histogram").df()`."""
        from rltrace.analysis.named_queries import named_query

        return self.sql(named_query(name).sql)

    @cached_property
    def summary(self) -> Summary:
        """The whole analysis, as `rltrace report` shows it; worked out once."""
        from rltrace.analysis.summary import summarize

        return summarize(self)

    def plot_steps(self, ax: Axes | None = None) -> Axes:
        """Each step as a column of the seconds that each stage held it up."""
        from rltrace.report import plots

        return plots.steps(self.summary, ax)

    def plot_waterfall(self, step: int | None = None, ax: Axes | None = None) -> Axes:
        """When each stage runs within a step: that one, or the mean of the steady ones."""
        from rltrace.report import plots

        return plots.waterfall(self, step, ax)

    def plot_stages(self, ax: Axes | None = None) -> Axes:
        """The share of the step that each stage has, and what of it hides behind others."""
        from rltrace.report import plots

        return plots.stages(self.summary, ax)

    def plot_lags(self, ax: Axes | None = None) -> Axes:
        """How stale the samples were that were trained on."""
        from rltrace.report import plots

        return plots.lags(self.summary, ax)

    def plot_latency(self, ax: Axes | None = None) -> Axes:
        """How long trajectories and verdicts took, as cumulative shares."""
        from rltrace.report import plots

        return plots.latency(self, ax)

    def plot_goodput(self, ax: Axes | None = None) -> Axes:
        """Goodput as a cascade of its factors."""
        from rltrace.report import plots

        return plots.goodput(self.summary, ax)

    def plot_timeline(
        self, since_s: float = 0.0, until_s: float = math.inf, ax: Axes | None = None
    ) -> Axes:
        """What every process did between two moments, in seconds since the trace began."""
        from rltrace.report import plots

        return plots.timeline(self, since_s, until_s, ax)
