"""The answer of a query on a terminal: what is shown is whole, and what is not is named."""

from __future__ import annotations

from io import StringIO

import duckdb
from rich.console import Console

from rltrace.report.formats import query_output as rows

WIDE = "SELECT 1234567890123456789::BIGINT AS number, 'x' AS one, repeat('long', 20) AS two, 7 AS y"


def shown(sql: str, width: int, terminal: bool) -> list[str]:
    console = Console(width=width, record=True, force_terminal=terminal, file=StringIO())
    rows.render(duckdb.sql(sql), console)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_terminal_gets_the_columns_that_fit_and_the_names_of_the_others() -> None:
    assert shown(WIDE, 30, terminal=True) == [
        "             number  one",
        "1234567890123456789  x",
        "too narrow for: two, y (--csv",
        "or --json gives all)",
    ]
    *_, line = shown(WIDE, 80, terminal=True)
    assert line == f"1234567890123456789  x    {'long' * 2}lo…{'g' + 'long' * 5}  7"
    *_, line = shown(WIDE, 20, terminal=False)
    assert line == f"1234567890123456789  x    {'long' * 20}  7"


def test_columns_of_which_nothing_is_known_make_room_first() -> None:
    sql = f"SELECT NULL AS phase, NULL AS role, * FROM ({WIDE})"
    assert shown(sql, 46, terminal=True) == [
        "             number  one  two               y",
        "1234567890123456789  x    longl…nglonglong  7",
        "too narrow for: phase, role (--csv or --json",
        "gives all)",
    ]


def test_what_a_terminal_would_obey_is_written_out() -> None:
    sql = "SELECT chr(27) || '[31mred' || chr(10) AS \"a" + chr(27) + '"'
    for terminal in (True, False):
        assert shown(sql, 80, terminal) == ["a\\x1b", "\\x1b[31mred\\n"]
    _, row = shown("SELECT repeat('x', 5000) AS name, 1 AS n", 80, terminal=False)
    assert len(row) < 300  # a name without end is cut off a terminal, too


def test_values_read_well() -> None:
    values = {
        "NULL": "-",
        "1/3": "0.333333",
        "4.2e9::DOUBLE": "4200000000",
        "'inf'::DOUBLE": "inf",
        "make_timestamp_ns(1790000000123456789)": "2026-09-21 14:13:20.123",
        "'[red]x'": "[red]x",
        "1e308::DOUBLE": "1e+308",
    }
    for value, text in values.items():
        assert shown(f"SELECT {value} AS x", 80, terminal=False)[1].strip() == text
