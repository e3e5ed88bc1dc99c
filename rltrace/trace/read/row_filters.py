"""Which rows count: possible times and counts, and ranges of time.

Of a range is what began in it, and what was going on when it began. A sample that was used in it
is, whenever it was generated and judged, so that its lag is known. A row that was still open when
the range began counts where its process recorded anything later: else it was lost long before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rltrace.trace.read.segment_batches import Columns
from rltrace.trace.schema import CAPTURED_TOKENS, SPANS, TABLES, Table
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    import duckdb

    from rltrace.trace.compact.stored_rows import Stored


EVER_NS = 1 << 62  # Unix ns of a moment in 2116: two can be subtracted and added


def of_real_times(table: Table, columns: Columns) -> tuple[Columns, int]:
    """The rows that began at a possible time, and how many did not; what else is no time becomes
    unknown. `columns` begin with those of `table`, with times in Unix ns."""
    if not len(columns[0]):
        return columns, 0
    real = (columns[0] > 0) & (columns[0] < EVER_NS)
    left_out = len(real) - int(np.count_nonzero(real))
    kept = [column[real] for column in columns] if left_out else [*columns]
    for i, column in enumerate(table.columns):
        if i and column.is_time:
            odd = (kept[i] < -1) | (kept[i] >= EVER_NS)
            kept[i] = np.where(odd, np.int64(-1), kept[i]) if odd.any() else kept[i]
    return kept, left_out


def end_what_was_left(columns: Columns) -> None:
    """Ends spans that a process left without storing so: an exception of the job may strike just as
    a `with rltrace.span(...)` is left. Such a span is open while one around it, in its lane, has
    ended. It gets no length, as that is unknown. Steps stay open: one that failed has no end.
    `columns` are those of spans, and the process of each."""
    names = ("start_ns", "end_ns", "stage", "lane")
    start, end, stage, lane = (columns[SPANS.find(name)] for name in names)
    process = columns[-1]
    is_open = (end < 0) & (stage != Stage.STEP)
    if not is_open.any():
        return
    among = np.flatnonzero(np.isin(lane, np.unique(lane[is_open])))
    order = among[np.lexsort((-end[among], start[among], lane[among], process[among]))]
    changes = (np.diff(lane[order]) != 0) | (np.diff(process[order]) != 0)
    for rows in np.split(order, np.flatnonzero(changes) + 1):
        around = np.maximum.accumulate(end[rows])  # the last end of those that began before
        left = rows[is_open[rows] & (around > start[rows])]
        end[left] = start[left]


COUNTS = (
    *("tokens", "bytes", "items", "prompt_tokens", "response_tokens", "turns", "env_ns"),
    *("preemptions", "stall_ns", "wire_bytes", "buckets"),
)
"""Columns without values below zero, but -1 for an unknown one."""


def make_unknown(table: Table, columns: Columns) -> Iterator[tuple[str, int]]:
    """Replaces counts below zero by -1 in `columns`; gives the columns with some, and how many."""
    for i, column in enumerate(table.columns):
        if column.name in COUNTS and columns[i].min(initial=0) < -1:
            below = columns[i] < -1
            columns[i] = np.where(below, columns[i].dtype.type(-1), columns[i])
            yield column.name, int(below.sum())


OF_SAMPLES = ("trajectories", "rewards", CAPTURED_TOKENS.name)
_KEPT_ROWS = 5_000_000  # a table of so many at the most is kept in memory


@dataclass(frozen=True)
class Range:
    """From `since_ns` on and before `until_ns` (Unix); of steps' spans those of these numbers."""

    since_ns: int
    until_ns: int
    first_step: int = 0
    last_step: int = EVER_NS

    @property
    def goes_on(self) -> bool:
        return self.until_ns >= EVER_NS


class Narrowed:
    """Makes the tables of a range in `database`, of `stored` rows."""

    def __init__(self, database: duckdb.DuckDBPyConnection, stored: Stored, of: Range) -> None:
        self._database, self._stored, self._of = database, stored, of
        self._manifest = stored.manifest

    def make(self, name: str) -> None:
        """Makes `recorded_<name>`."""
        rows = f"FROM ({self._near(name)}) r WHERE {self._within(TABLES[name])}"
        kind = "TABLE" if self._most_rows(name) <= _KEPT_ROWS else "VIEW"
        self._database.execute(f"CREATE OR REPLACE {kind} recorded_{name} AS {rows}")
        if name in OF_SAMPLES and kind == "TABLE":
            self._add_earlier(name)

    def _near(self, name: str) -> str:
        """The rows of the files that the range has part in."""
        return self._stored.near(name, self._of.since_ns, self._of.until_ns)

    def _most_rows(self, name: str) -> int:
        rows = 0
        if self._manifest is not None:
            parts, _ = self._manifest.between(name, self._of.since_ns, self._of.until_ns)
            rows = sum(part.rows for part in parts)
        if (rest := self._stored.rest(name)) is not None:
            rows += self._database.execute(f"SELECT count(*) FROM {rest}").fetchall()[0][0]
        return rows

    def _within(self, table: Table) -> str:
        since, until, marker = self._of.since_ns, self._of.until_ns, table.columns[0].name
        if table is CAPTURED_TOKENS:
            return f"(start_ns < {until} AND (start_ns >= {since} OR {self._is_used}))"
        if table.find("end_ns") < 0:
            return f'"{marker}" >= {since} AND "{marker}" < {until}'
        of_time = (
            f"(start_ns < {until} AND (start_ns >= {since} OR end_ns >= {since} "
            f"OR (end_ns = -1 AND {self._is_alive})))"
        )
        if table.name in OF_SAMPLES:
            return f"(start_ns < {until} AND ({of_time} OR {self._is_used}))"
        if table.name != "spans":
            return of_time
        first, last = self._of.first_step, self._of.last_step
        of_steps = f"(start_ns >= {since} AND step BETWEEN {first} AND {last})"
        return f"({of_time} AND (stage <> {int(Stage.STEP)} OR {of_steps}))"

    @cached_property
    def _is_alive(self) -> str:
        """Whether the process of a row recorded something in the range."""
        since, until = self._of.since_ns, self._of.until_ns
        began = f"start_ns < {until} AND greatest(start_ns, end_ns) >= {since}"
        rows = " UNION ".join(
            f"SELECT process FROM ({self._near(name)}) WHERE {began}"
            for name in ("spans", "trajectories", "rewards", "syncs")
        )
        self._database.execute(f"CREATE OR REPLACE TABLE range_alive AS {rows}")
        return "process IN (FROM range_alive)"

    @cached_property
    def _is_used(self) -> str:
        """Whether the sample of a row was used in the range."""
        within = f"trajectory <> -1 AND {self._within(TABLES['uses'])}"
        rows = f"SELECT DISTINCT trajectory FROM ({self._near('uses')}) WHERE {within}"
        self._database.execute(f"CREATE OR REPLACE TABLE range_used AS {rows}")
        return "trajectory IN (FROM range_used)"

    def _add_earlier(self, name: str) -> None:
        """Adds what belongs to the samples that were used, from the parts before, back to the first
        that has nothing of them: samples are used within a bounded time, if at all."""
        if self._manifest is None:
            return
        parts = self._manifest.tables[name]
        before = [part for part in parts if part.until_ns <= self._of.since_ns]
        for part in reversed(before):
            known = f"SELECT trajectory FROM recorded_{name}"
            missing = f"FROM range_used WHERE trajectory NOT IN ({known})"
            if self._database.execute(f"{missing} LIMIT 1").fetchone() is None:
                return
            rows = f"FROM {self._stored.of_files(name, [part.path])}"
            insert = f"INSERT INTO recorded_{name} BY NAME {rows} WHERE trajectory IN ({missing})"
            if self._database.execute(insert).fetchall() == [(0,)]:
                return
