"""The latest rows of a run that goes on, and the report's tables made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.intervals import Ints
from rltrace.analysis.samples import TRAINED_USES
from rltrace.trace.follow import Rows
from rltrace.trace.lives import UNTOLD_UNKNOWN
from rltrace.trace.processes import Process
from rltrace.trace.schema import EVENT_TABLES, Table
from rltrace.trace.signals import WEIGHTS, reward_weights, weights_table
from rltrace.trace.stored import publish_names
from rltrace.trace.tables import Tables

if TYPE_CHECKING:
    import duckdb

SPARING = 100.0
"""What is asked beside a job stays for that many times the CPU time that it took: 1 % of a core at
most, however short steps are."""

SAMPLE_TABLES = ("trajectories", "rewards", "uses")


class Kept:
    """Rows of `table`, of which those that ended before a moment can be dropped."""

    def __init__(self, table: Table) -> None:
        names = [column.name for column in table.columns]
        self.end = "end_ns" if "end_ns" in names else names[0]  # the column of the end
        self._parts: list[tuple[int, Rows]] = []  # with the latest end in each
        self._none = Rows(
            {c.name: np.empty(0, np.dtype(c.kind)) for c in table.columns}
            | {"process": np.empty(0, np.int64)}
        )

    def add(self, rows: Rows) -> None:
        """Takes in rows that are complete."""
        if len(rows):
            self._parts.append((int(rows[self.end].max()), rows))

    @property
    def latest_ns(self) -> int:
        """The latest end of a row; -1 where there is none."""
        return max((latest for latest, _ in self._parts), default=-1)

    def since(self, moment_ns: int, *more: Rows) -> Rows:
        """The rows that ended at `moment_ns` or later, and `more`."""
        parts = [rows for latest, rows in self._parts if latest >= moment_ns]
        parts = [rows.where(rows[self.end] >= moment_ns) for rows in parts]
        return together([*parts, *more], self._none)

    def drop_before(self, moment_ns: int) -> None:
        """Forgets rows that ended before, part by part as they came."""
        self._parts = [(latest, rows) for latest, rows in self._parts if latest >= moment_ns]


def together(parts: list[Rows], none: Rows) -> Rows:
    """All rows of the parts; `none` where there are none."""
    parts = [rows for rows in parts if len(rows)]
    if len(parts) < 2:
        return parts[0] if parts else none
    return Rows({c: np.concatenate([rows[c] for rows in parts]) for c in none.columns})


def database_beside_the_job() -> duckdb.DuckDBPyConnection:
    """A database of one thread: there are few rows, and the job has work for the others."""
    import duckdb

    return duckdb.connect(config={"threads": 1})


class KeptTables(Tables):
    """`rows` by table, of a run with these processes and names, put into `database` in place of
    those before; `starts` are when its steps began (Unix ns, in order). Of weight updates only the
    latest are kept, and what samples before the first of all have of a version cannot be told."""

    _untold = UNTOLD_UNKNOWN

    def __init__(
        self,
        database: duckdb.DuckDBPyConnection,
        rows: Mapping[str, Rows],
        processes: Sequence[Process],
        names: Sequence[str],
        starts: list[int],
    ) -> None:
        super().__init__()
        self._rows, self._starts, self._connection = rows, starts, database
        publish_names(database, {text: number for number, text in enumerate(names)})
        database.register(WEIGHTS, weights_table(reward_weights(processes)))

    @property
    def _database(self) -> duckdb.DuckDBPyConnection:
        return self._connection

    def _make_rows(self, name: str) -> None:
        import pyarrow as pa

        rows = self._rows.get(name) or Kept(EVENT_TABLES[name]).since(0)
        columns = {of: pa.array(values) for of, values in rows.columns.items()}
        self._database.register(f"recorded_{name}", pa.table(columns))

    def _step_starts(self) -> list[int]:
        return self._starts


GENERATED = """
    select arg_max(process, t.response_tokens) as process, max(t.finish) as finish,
           min(start_ns) as start_ns, max(t.end_ns) as end_ns,
           greatest(max(t.response_tokens), max(l.tokens)) as tokens
    from raw_trajectories t left join sample_lives l using (trajectory)
    where trajectory <> -1 group by trajectory
    union all
    select process, finish, start_ns, end_ns, response_tokens
    from raw_trajectories where trajectory = -1"""
"""A row for each sample that was generated; unknown is -1."""

LAGS = f"""{TRAINED_USES}
    select time_ns, coalesce(version - first_version, 0) as lag,
           version >= 0 and first_version is not null as known
    from trained"""
"""When each sample was trained on, once for each version, with its lag where that is known."""


def columns_of(tables: KeptTables, query: str, *names: str) -> list[Ints]:
    found = tables.ask_columns(query)
    return [np.asarray(found[name], np.int64) for name in names]
