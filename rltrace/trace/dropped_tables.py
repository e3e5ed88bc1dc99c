"""What was dropped of a run (`wrap --max-bytes`), for queries: the sums of its steps that were
kept, and which rows of a table are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rltrace.trace.dropped import Dropped, StepTotal
from rltrace.trace.schema import TABLES, Column, Table

if TYPE_CHECKING:
    import duckdb

DROPPED_STEPS = "dropped_steps"
SEGMENT = Column("segment", "i")
"""Of a run that is kept small: the number of the segment that a row was stored in. A row of one
that was dropped is among the sums already, wherever it can be read still: in Parquet files that are
older, or in memory."""

_UNTIL = "dropped_until"
_SEGMENTS = "dropped_segments"


def publish_dropped(
    database: duckdb.DuckDBPyConnection,
    dropped: Dropped | None,
    numbers: Mapping[str, Mapping[str, int]],
) -> None:
    """Makes known until when `shown` hides rows, and of which segments, or makes it known anew.
    `numbers` are those of the segments, by table and file."""
    import pyarrow as pa

    until_ns = {
        name: pa.array([dropped.until_ns_of(name) if dropped is not None else -1], pa.int64())
        for name in TABLES
    }
    database.register(_UNTIL, pa.table(until_ns))
    gone = [
        (table, number)
        for table, of_table in numbers.items()
        for file, number in of_table.items()
        if dropped is not None and f"{table}/{file}" in dropped.files
    ]
    tables, segments = pa.array([t for t, _ in gone], pa.string()), [n for _, n in gone]
    database.register(
        _SEGMENTS, pa.table({"name": tables, "segment": pa.array(segments, pa.int32())})
    )


def publish_steps(database: duckdb.DuckDBPyConnection, totals: Iterable[StepTotal]) -> None:
    """Makes `dropped_steps`, or makes it anew."""
    import pyarrow as pa

    totals = [*totals]
    kinds = {"step": pa.int64(), "what": pa.string(), "rows": pa.int64(), "tokens": pa.int64()}
    kinds |= {"seconds": pa.float64(), "start_ns": pa.int64(), "end_ns": pa.int64()}
    columns = {k: pa.array([getattr(t, k) for t in totals], kinds[k]) for k in kinds}
    database.register(DROPPED_STEPS, pa.table(columns))


def shown(table: Table, rows: str) -> str:
    """Of `rows` with their segment (SQL) those of a time whose details are whole, and what is in
    progress since before. That holds for what is dropped later, too."""
    return (
        f"(SELECT * EXCLUDE ({SEGMENT.name}) FROM {rows} "
        f"WHERE {_is_there(table)} AND {_is_shown(table)})"
    )


def hidden(table: Table, rows: str) -> str:
    """Of `rows` with their segment (SQL) those that are not shown and were not dropped."""
    return f"(FROM {rows} WHERE {_is_there(table)} AND NOT {_is_shown(table)})"


def _is_there(table: Table) -> str:
    gone = f"SELECT {SEGMENT.name} FROM {_SEGMENTS} WHERE name = '{table.name}'"
    return f"{SEGMENT.name} NOT IN ({gone})"


def _is_shown(table: Table) -> str:
    goes_on = " OR end_ns = -1" if "end_ns" in [column.name for column in table.columns] else ""
    return f'("{table.columns[0].name}" > (SELECT {table.name} FROM {_UNTIL}){goes_on})'
