"""The answer of a query: as a table, as records, as CSV."""

from __future__ import annotations

import io
import math
from csv import writer
from typing import Any, cast

import duckdb
from rich.console import Console
from rich.table import Table

from rltrace.trace.errors import WRONG_USAGE, RltraceError

MOST_SHOWN_ROWS = 200
"""A terminal shows this many rows; `--json` and `--csv` give all."""

_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL")


def render(relation: duckdb.DuckDBPyRelation, console: Console) -> None:
    """Prints a table; says so when rows are left out. Off a terminal no line is ever broken."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    kinds: list[Any] = list(cast("Any", relation).types)
    for name, kind in zip(relation.columns, kinds, strict=True):
        is_number = any(word in str(kind) for word in _NUMBERS)
        table.add_column(
            name, justify="right" if is_number else "left", no_wrap=is_number, overflow="ellipsis"
        )
    rows = _fetch(relation, MOST_SHOWN_ROWS + 1)
    for row in rows[:MOST_SHOWN_ROWS]:
        table.add_row(*(_shown(value) for value in row))
    if not console.is_terminal:
        console.width = max(console.width, console.measure(table).maximum)
    console.print(table)
    if len(rows) > MOST_SHOWN_ROWS:
        console.print(f"[dim]the first {MOST_SHOWN_ROWS} rows; --csv or --json gives all[/dim]")


def records(relation: duckdb.DuckDBPyRelation) -> list[dict[str, Any]]:
    """All rows as dicts, for JSON: which has no word for NaN and infinity, so they become None, as
    other values that it has no type for become text."""
    rows = (map(_finite, row) for row in _fetch(relation, None))
    return [dict(zip(relation.columns, row, strict=True)) for row in rows]


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def csv(relation: duckdb.DuckDBPyRelation) -> str:
    """All rows as CSV with a header line."""
    out = io.StringIO()
    lines = writer(out, lineterminator="\n")
    lines.writerow(relation.columns)
    lines.writerows(_fetch(relation, None))
    return out.getvalue()


def _fetch(relation: duckdb.DuckDBPyRelation, most: int | None) -> list[tuple[Any, ...]]:
    limited: Any = relation if most is None else relation.limit(most)
    try:
        rows: list[tuple[Any, ...]] = limited.fetchall()
        return rows
    except duckdb.Error as error:  # a cast or division that fails only while running
        said = str(error).strip().splitlines()[0]
        raise RltraceError(f"the query does not run: {said}", WRONG_USAGE) from None


def _shown(value: object) -> str:
    if value is None:
        return "[dim]-[/dim]"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).replace("[", "\\[")
