"""Rows of a run that are on the disk and that no table shows: what began until the newest time that
was dropped (`rltrace.trace.dropped`), of tables and processes whose files were not. Their sums stay
with those of what was dropped, whether they are in segments or in Parquet files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rltrace.trace.dropped import STEP, SUMMED, Dropped, StepSums, StepTotal, what_of
from rltrace.trace.dropped_tables import hidden
from rltrace.trace.schema import SPANS, Table

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class Hidden:
    """Of a table: how many rows, and what they say of steps."""

    rows: int
    totals: tuple[StepTotal, ...]


def hidden_rows(
    database: duckdb.DuckDBPyConnection, table: Table, sources: Sequence[str]
) -> Hidden:
    """What is hidden in `sources` of a table (SQL, with the segment of each row). Errors:
    duckdb.Error where one cannot be read."""
    found = " UNION ALL BY NAME ".join(f"FROM {hidden(table, source)}" for source in sources)
    if not found:
        return Hidden(0, ())
    if table.name not in SUMMED:
        return Hidden(database.execute(f"SELECT count(*) FROM ({found})").fetchall()[0][0], ())
    spans = table is SPANS
    code, moments = ("stage", "start_ns, end_ns") if spans else ("fate", "-1, -1")
    start, end = moments.split(", ")
    rows = database.execute(
        f"SELECT step, {code}, count(*), sum(greatest({end} - {start}, 0)),"
        f" sum(greatest(tokens, 0)), min({start}), max({end}) FROM ({found}) GROUP BY ALL"
    ).fetchall()
    totals = []
    for step, number, count, lasted_ns, tokens, first_ns, last_ns in rows:
        what = what_of(table.name, number)
        when = (first_ns, last_ns) if what == STEP else (-1, -1)
        totals.append(StepTotal(step, what, count, int(lasted_ns) / 1e9, int(tokens), *when))
    return Hidden(sum(total.rows for total in totals), tuple(totals))


def with_hidden(dropped: Dropped, hidden: Mapping[str, Hidden]) -> Dropped:
    """What was dropped, with what is hidden of each table."""
    sums = StepSums()
    for total in (*dropped.steps, *(total for of in hidden.values() for total in of.totals)):
        sums.add(total)
    rows = {table: of.rows for table, of in hidden.items() if of.rows}
    return replace(dropped, steps=sums.totals(), hidden=rows)
