"""The answer of a query: as a table, as records, as CSV."""

from __future__ import annotations

import io
import math
from csv import writer
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import duckdb
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rltrace.trace.errors import WRONG_USAGE, RltraceError

if TYPE_CHECKING:
    from rltrace.analysis.named_queries import NamedQuery

MOST_SHOWN_ROWS = 200
"""A terminal shows this many rows; `--json` and `--csv` give all."""

_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL")
_TEXTS = ("VARCHAR",)
_ZONED = "WITH TIME ZONE"
_LONGEST_TEXT = 32
_WHOLE_FROM = 1e6  # bytes and the like, which nobody reads with an exponent
_GAP = 2
_UNBOUND = 100_000


def render(relation: duckdb.DuckDBPyRelation, console: Console) -> None:
    """Prints a table, a line for each row, and says which rows and columns are left out. A terminal
    gets the columns that fit beside each other; else a line is as long as it has to be."""
    kinds = [str(kind) for kind in cast("list[Any]", relation.types)]
    rows = _fetch(relation, MOST_SHOWN_ROWS + 1)
    names = list(relation.columns)
    columns = [[_shown(row[i]) for row in rows[:MOST_SHOWN_ROWS]] for i, _ in enumerate(names)]
    if console.is_terminal:
        for i, kind in enumerate(kinds):
            if kind in _TEXTS:
                columns[i] = [_cut(text) for text in columns[i]]
        names = names[: _fitting(names, columns, console.width)]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, kind in zip(names, kinds, strict=False):
        is_number = any(word in kind for word in _NUMBERS)
        table.add_column(escape(name), justify="right" if is_number else "left", no_wrap=True)
    for row in zip(*columns[: len(names)], strict=True):
        table.add_row(*("[dim]-[/dim]" if text is None else escape(text) for text in row))
    _print_whole(table, console)
    if len(rows) > MOST_SHOWN_ROWS:
        console.print(f"[dim]the first {MOST_SHOWN_ROWS} rows; --csv or --json gives all[/dim]")
    if len(names) < len(columns):
        left_out = ", ".join(relation.columns[len(names) :])
        console.print(f"[dim]too narrow for: {escape(left_out)} (--csv or --json gives all)[/dim]")


def _fitting(names: list[str], columns: list[list[str | None]], width: int) -> int:
    """How many of the first columns stand beside each other in a width; at least one."""
    used = -_GAP
    for i, (name, column) in enumerate(zip(names, columns, strict=True)):
        used += _GAP + max(cell_len(text) for text in [name, *(c or "-" for c in column)])
        if used > width:
            return max(i, 1)
    return len(names)


def _cut(text: str | None) -> str | None:
    """Text of a terminal's column: of a long one, the beginning."""
    if text is None or len(text) <= _LONGEST_TEXT:
        return text
    return text[: _LONGEST_TEXT - 1] + "…"


def _print_whole(table: Table, console: Console) -> None:
    """Prints a table, off a terminal without breaking a line."""
    if not console.is_terminal:
        unbound = console.options.update(width=_UNBOUND)
        console.width = max(console.width, console.measure(table, options=unbound).maximum)
    console.print(table)


def render_named(queries: tuple[NamedQuery, ...], console: Console) -> None:
    """Prints the queries that have a name, and what each answers."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for query in queries:
        table.add_row(f"@{query.name}", escape(query.explains))
    _print_whole(table, console)


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


def _zones_as_text(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Times with a zone as text: as Python's own they need pytz, which nothing else here does."""
    kinds = [str(kind) for kind in cast("list[Any]", relation.types)]
    if not any(_ZONED in kind for kind in kinds):
        return relation
    columns = [  # by place: two may have one name
        f"cast(#{place} as varchar)" if _ZONED in kind else f"#{place}"
        for place, kind in enumerate(kinds, 1)
    ]
    return relation.project(", ".join(columns))


def _fetch(relation: duckdb.DuckDBPyRelation, most: int | None) -> list[tuple[Any, ...]]:
    relation = _zones_as_text(relation)
    limited: Any = relation if most is None else relation.limit(most)
    try:
        rows: list[tuple[Any, ...]] = limited.fetchall()
        return rows
    except duckdb.Error as error:  # a cast or division that fails only while running
        said = str(error).strip().splitlines()[0]
        raise RltraceError(f"the query does not run: {said}", WRONG_USAGE) from None


def _shown(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, float):
        return f"{value:.0f}" if _WHOLE_FROM <= abs(value) < math.inf else f"{value:.6g}"
    if isinstance(value, datetime):
        return value.isoformat(" ", "milliseconds")
    return str(value)
