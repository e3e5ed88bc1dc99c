"""The latest rows of a run that goes on, as report tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rltrace.analysis.timeline.intervals import Ints
from rltrace.analysis.timeline.process_intervals import TABLE_OF
from rltrace.trace.compact.stored_rows import publish_columns, publish_names
from rltrace.trace.read.run_follower import Rows
from rltrace.trace.read.sql_views import Tables
from rltrace.trace.read.trajectory_ids import publish_weights
from rltrace.trace.read.trajectory_lifecycle import UNTOLD_UNKNOWN
from rltrace.trace.schema import EVENT_TABLES, Table
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    import duckdb

    from rltrace.analysis.live.followed_run import Watched

SPARING = 100.0
"""What is asked beside a job stays so many times the CPU time it took: 1 % of a core at most."""

NEVER_NS = int(np.iinfo(np.int64).max)


class Kept:
    """Rows of `table`. Those that ended before a moment can be dropped: `since_ns` is the latest
    such moment, `end` the column of the end."""

    def __init__(self, table: Table) -> None:
        names = [column.name for column in table.columns]
        self.end = "end_ns" if "end_ns" in names else names[0]
        self.since_ns = 0
        self._parts: list[tuple[int, Rows]] = []  # with the latest end in each
        none = {column.name: np.empty(0, np.dtype(column.kind)) for column in table.columns}
        self._none = Rows({**none, "process": np.empty(0, np.int64)})

    def add(self, rows: Rows) -> None:
        if len(rows):
            self._parts.append((int(rows[self.end].max()), rows))

    def since(self, moment_ns: int, *more: Rows) -> Rows:
        """The rows that ended at `moment_ns` or later, and `more`."""
        parts = [rows for latest, rows in self._parts if latest >= moment_ns]
        parts = [rows.where(rows[self.end] >= moment_ns) for rows in parts]
        return together([*parts, *more], self._none)

    def drop_before(self, moment_ns: int) -> None:
        """Forgets rows that ended before, part by part as they came."""
        self.since_ns = max(self.since_ns, moment_ns)
        self._parts = [(latest, rows) for latest, rows in self._parts if latest >= moment_ns]


def together(parts: list[Rows], none: Rows) -> Rows:
    """All rows of the parts, in the columns of `none`; `none` where there are none."""
    parts = [rows for rows in parts if len(rows)]
    if len(parts) < 2:
        return parts[0] if parts else none
    return Rows({c: np.concatenate([rows[c] for rows in parts]) for c in none.columns})


def each(rows: Rows, *columns: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows[column].tolist() for column in columns), strict=True)


def ended(rows: Rows, ends_ns: Ints) -> Rows:
    """The rows; those that are open end when their process does (`ends_ns`, by process)."""
    if not len(rows):
        return rows
    end = np.where(rows["end_ns"] < 0, ends_ns[rows["process"]], rows["end_ns"])
    return Rows({**rows.columns, "end_ns": end})


def rows_of_stages(tables: Mapping[str, Rows], with_spans: Collection[Stage]) -> Rows:
    """All spans, and as such the rows of tables of stages that are not among those `with_spans`."""
    spans = tables["spans"]
    parts = [spans]
    for stage, table in TABLE_OF.items():
        rows = tables[table]
        rows = rows.where(rows["end_ns"] > rows["start_ns"])
        if stage not in with_spans:
            of_stage = np.full(len(rows), int(stage))
            parts.append(Rows({**rows.columns, "stage": of_stage, "lane": np.zeros_like(of_stage)}))
    needed = ("start_ns", "end_ns", "stage", "process", "lane")
    return together(parts, Rows({name: spans[name] for name in needed}))


class KeptTables(Tables):
    """`rows` by table, put into the database of `run` over those before. Only the latest weight
    updates are kept: earlier samples have no known version."""

    _untold = UNTOLD_UNKNOWN

    def __init__(self, run: Watched, rows: Mapping[str, Rows]) -> None:
        super().__init__()
        self._run, self._rows, self.processes = run, rows, run.follower.processes
        names = {text: number for number, text in enumerate(run.follower.names)}
        publish_names(self._database, names)
        publish_weights(self._database, self.processes)

    @property
    def _database(self) -> duckdb.DuckDBPyConnection:
        return self._run.database

    def _make_rows(self, name: str) -> None:
        rows = self._rows.get(name) or Kept(EVENT_TABLES[name]).since(0)
        publish_columns(self._database, f"recorded_{name}", rows.columns)

    def spans_of_training(self) -> Rows:
        """The spans; those that are an evaluation's are of that stage."""
        spans = self._rows["spans"]
        if not (spans["stage"] == Stage.EVAL).any():
            return spans
        return Rows({name: np.asarray(v) for name, v in self.ask_columns("from raw_spans").items()})

    def _step_starts(self) -> list[int]:
        return self._run.step_starts_ns

    def _job_begins(self) -> list[int]:
        return self._run.job_begins_ns


GENERATED: str = packaged_toml("analysis/data/sample_queries.toml")["generated_rows"]


def columns_of(tables: KeptTables, query: str, *names: str) -> list[Ints]:
    found = tables.ask_columns(query)
    return [np.asarray(found[name], np.int64) for name in names]
