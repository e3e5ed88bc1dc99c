"""What was dropped of a run (`wrap --max-bytes`), for queries: the sums of its steps that were
kept, and which rows of a table are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rltrace.trace.dropped import Dropped
from rltrace.trace.schema import TABLES, Table

if TYPE_CHECKING:
    import duckdb

_UNTIL = "dropped_until"


def publish_dropped(database: duckdb.DuckDBPyConnection, dropped: Dropped | None) -> None:
    """Makes `dropped_steps`, and until when `shown` hides rows, or makes them anew."""
    import pyarrow as pa

    until_ns = {
        name: pa.array([dropped.until_ns_of(name) if dropped is not None else -1], pa.int64())
        for name in TABLES
    }
    database.register(_UNTIL, pa.table(until_ns))
    totals = dropped.steps if dropped is not None else ()
    kinds = {"step": pa.int64(), "what": pa.string(), "rows": pa.int64(), "tokens": pa.int64()}
    kinds |= {"seconds": pa.float64(), "start_ns": pa.int64(), "end_ns": pa.int64()}
    columns = {k: pa.array([getattr(t, k) for t in totals], kinds[k]) for k in kinds}
    database.register("dropped_steps", pa.table(columns))


def shown(table: Table) -> str:
    """The rows of a time whose details are whole, and what is in progress since before: a condition
    that holds for what is dropped later, too."""
    goes_on = " OR end_ns = -1" if "end_ns" in [column.name for column in table.columns] else ""
    return f'("{table.columns[0].name}" > (SELECT {table.name} FROM {_UNTIL}){goes_on})'
