"""The command that asks a run in SQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import rltrace
from rltrace.cli.options import JSON, RUN, one_form, print_json
from rltrace.trace.errors import WRONG_USAGE, RltraceError

if TYPE_CHECKING:
    from rltrace.analysis.named_queries import NamedQuery


@click.command()
@click.argument("sql", required=False)
@RUN
@JSON
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--list", "wanted", flag_value="list", help="List the queries that have a name.")
@click.option("--show", "wanted", flag_value="show", help="Print a named query and do not ask it.")
def query(sql: str | None, run: Path | None, as_json: bool, as_csv: bool, wanted: str) -> None:
    """Ask a run in SQL: `rltrace query "SELECT stage, seconds FROM stages"`, or by a name:
    `rltrace query @slowest_trajectories` (docs/queries.md)."""
    one_form({"--json": as_json, "--csv": as_csv})
    if wanted and as_csv:
        raise RltraceError(f"--{wanted} has no CSV: leave out --csv", WRONG_USAGE)
    if wanted == "list":
        _list(sql, as_json)
    elif sql is None:
        raise RltraceError("say what to ask: a SELECT or @NAME (--list shows them)", WRONG_USAGE)
    elif wanted == "show":
        _show(_named(sql), as_json)
    else:
        _answer(_named(sql).sql if sql.startswith("@") else sql, run, as_json, as_csv)


def _named(name: str) -> NamedQuery:
    from rltrace.analysis.named_queries import named_query

    return named_query(name)


def _list(argument: str | None, as_json: bool) -> None:
    from rltrace.analysis.named_queries import named_queries

    if argument is not None:
        raise RltraceError(f"--list lists all queries: leave out {argument!r}", WRONG_USAGE)
    listed = named_queries()
    if as_json:
        print_json([{"name": f"@{one.name}", "explains": one.explains} for one in listed])
        return
    from rich.console import Console

    from rltrace.report import rows

    rows.render_named(listed, Console())


def _show(found: NamedQuery, as_json: bool) -> None:
    if as_json:
        print_json({"name": f"@{found.name}", "explains": found.explains, "sql": found.sql})
    else:
        click.echo(found.sql, nl=False)


def _one_statement(sql: str) -> None:
    """Of several, DuckDB would answer the last and say nothing of the others."""
    import duckdb

    try:
        number = len(duckdb.extract_statements(sql))
    except duckdb.Error:  # whoever runs it says what is wrong with it
        return
    if number > 1:
        raise RltraceError(f"one query at a time: these are {number} statements", WRONG_USAGE)


def _answer(sql: str, run: Path | None, as_json: bool, as_csv: bool) -> None:
    from rltrace.report import rows
    from rltrace.run.location import find_run

    opened = rltrace.open_run(find_run(run))
    _one_statement(sql)
    relation = opened.sql(sql)
    if as_json:
        print_json(rows.records(relation))
    elif as_csv:
        click.echo(rows.csv(relation), nl=False)
    else:
        from rich.console import Console

        rows.render(relation, Console())
