"""A run as a person holds it in a notebook: the tables, the named queries, the summary."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.trace.read import run as trace

if TYPE_CHECKING:
    import duckdb

    from rltrace.analysis.summary import Summary


def open_run(path: str | Path) -> Run:
    """Opens a run directory, or a URL. Errors: `RltraceError` for none, or a newer rltrace's."""
    if isinstance(path, str) and "://" in path:
        from rltrace.trace.transfer.remote_runs import fetch

        return Run(fetch(path))
    return Run(Path(path))


class Run(trace.OpenedRun):
    """An opened run, with what people ask of it first."""

    def query(self, name: str) -> duckdb.DuckDBPyRelation:
        """A query of the pack (docs/reference/queries.md): `run.query("@lag_histogram").df()`."""
        from rltrace.report.named_queries import named_query

        return self.sql(named_query(name).sql)

    @cached_property
    def summary(self) -> Summary:
        """The whole analysis, as `rltrace report` shows it; worked out once."""
        from rltrace.analysis.run_analysis import RunAnalysis
        from rltrace.analysis.summary import summary_of

        return summary_of(RunAnalysis(self))

    def _repr_html_(self) -> str:
        """What a notebook shows of a run: the first screen of its page."""
        from rltrace.report.html import in_notebook

        return in_notebook(self.summary)
