"""The answer of a query: as a table, as records, as CSV."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from csv import writer
from datetime import datetime
from typing import Any, cast

import duckdb
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rltrace.report.formats.terminal_tables import GAP, print_lines
from rltrace.report.named_queries import NamedQuery
from rltrace.trace.errors import WrongUsage, first_line
from rltrace.trace.read.sql_views import failed
from rltrace.trace.safe_text import visible

MOST_SHOWN_ROWS = 200  # a terminal shows this many rows; `--json` and `--csv` give all
_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL")
_ZONED = "WITH TIME ZONE"
_LONGEST_TEXT = 200  # characters, where lines are as long as they have to be
_SHORTENED = (32, 24, 16)  # characters, on a terminal
_WHOLE = (1e6, 1e18)  # bytes and the like, which nobody reads with an exponent


def render(relation: duckdb.DuckDBPyRelation, console: Console) -> None:
    """Prints a line for each row, and what is left out; a terminal gets what fits."""
    kinds = [str(kind) for kind in cast("list[Any]", relation.types)]
    rows = _fetch(relation, MOST_SHOWN_ROWS + 1)
    names = [visible(name) for name in relation.columns]
    rows, more = rows[:MOST_SHOWN_ROWS], len(rows) > MOST_SHOWN_ROWS
    if console.is_terminal:
        kept, columns = _fitting(names, rows, console.width)
    else:
        kept, columns = list(range(len(names))), _columns(len(names), rows, _LONGEST_TEXT)
    numbers = [at for at, i in enumerate(kept) if any(word in kinds[i] for word in _NUMBERS)]
    shown = list(zip(*(columns[i] for i in kept), strict=True))
    print_lines(console, [names[i] for i in kept], shown, numbers)
    notes = [] if rows else ["(0 rows)"]
    notes += [f"the first {MOST_SHOWN_ROWS} rows; --csv or --json gives all"] if more else []
    if left_out := [name for i, name in enumerate(names) if i not in kept]:
        notes.append(f"too narrow for: {', '.join(left_out)} (--csv or --json gives all)")
    for note in notes:
        console.print(Text(note, style="dim"))


def _columns(number: int, rows: Sequence[Sequence[object]], longest: int) -> list[list[Text]]:
    return [[_shown(row[i], longest) for row in rows] for i in range(number)]


def _fitting(
    names: list[str], rows: Sequence[Sequence[object]], width: int
) -> tuple[list[int], list[list[Text]]]:
    """The places of the columns that fit into a width, at least one, and all columns; where need be
    with shorter texts, without unknown columns, and then the first ones."""
    told = [i for i in range(len(names)) if any(row[i] is not None for row in rows)]
    for kept in (list(range(len(names))), told):
        for longest in _SHORTENED:
            columns = _columns(len(names), rows, longest)
            if _width(names, columns, kept) <= width:
                return kept, columns
    kept = told or [0]
    while len(kept) > 1 and _width(names, columns, kept) > width:
        kept = kept[:-1]
    return kept, columns


def _width(names: list[str], columns: list[list[Text]], kept: list[int]) -> int:
    widths = (max([cell_len(names[i]), *(cell.cell_len for cell in columns[i])]) for i in kept)
    return sum(widths) + GAP * (len(kept) - 1)


def render_named(queries: tuple[NamedQuery, ...], console: Console) -> None:
    if not console.is_terminal:
        print_lines(console, ("", ""), [(f"@{query.name}", query.explains) for query in queries])
        return
    table = Table.grid(padding=(0, GAP))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for query in queries:
        table.add_row(Text(f"@{query.name}"), Text(query.explains))
    console.print(table)


def records(relation: duckdb.DuckDBPyRelation) -> list[dict[str, Any]]:
    """All rows as dicts, for JSON: which has no word for NaN and infinity, so they become None."""

    def finite(value: object) -> object:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    rows = (map(finite, row) for row in _fetch(relation, None))
    return [dict(zip(relation.columns, row, strict=True)) for row in rows]


def csv(relation: duckdb.DuckDBPyRelation, shown: bool) -> str:
    """All rows as CSV with a header line; `shown` on a terminal, without what it would obey."""
    out = io.StringIO()
    lines = writer(out, lineterminator="\n")
    for row in (relation.columns, *_fetch(relation, None)):
        lines.writerow([visible(v) if shown and isinstance(v, str) else v for v in row])
    return out.getvalue()


def _fetch(relation: duckdb.DuckDBPyRelation, most: int | None) -> list[tuple[Any, ...]]:
    """The rows, with times that have a zone as text: as Python's own they need pytz."""
    kinds = [str(kind) for kind in cast("list[Any]", relation.types)]
    if any(_ZONED in kind for kind in kinds):
        columns = [  # by place: two may have one name
            f"cast(#{place} as varchar)" if _ZONED in kind else f"#{place}"
            for place, kind in enumerate(kinds, 1)
        ]
        relation = relation.project(", ".join(columns))
    limited: Any = relation if most is None else relation.limit(most)
    try:
        rows: list[tuple[Any, ...]] = limited.fetchall()
        return rows
    except duckdb.Error as error:  # a cast or division that fails only while running
        said = WrongUsage(f"the query does not run: {first_line(error)}")
        raise failed(error) or said from None


def _shown(value: object, longest: int | None) -> Text:
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, float):
        return Text(f"{value:.0f}" if _WHOLE[0] <= abs(value) < _WHOLE[1] else f"{value:.6g}")
    if isinstance(value, datetime):
        return Text(value.isoformat(" ", "milliseconds"))
    return Text(visible(str(value), longest if isinstance(value, str) else None))
