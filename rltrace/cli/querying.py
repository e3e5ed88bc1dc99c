"""The command that asks a run in SQL."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rltrace.cli.manual import command, offered_questions
from rltrace.cli.options import JSON, asks_of_a_part, one_form, print_json, run_path
from rltrace.cli.output import console, working
from rltrace.hooks.recorder import to_stderr
from rltrace.trace.errors import CANNOT_TELL, INTERRUPTED, RltraceError, WrongUsage
from rltrace.trace.metadata_validation import is_of_here
from rltrace.trace.read.bounds import FOREIGN_QUERY_S

if TYPE_CHECKING:
    from rltrace.analysis.timeline.analysed_part import StepSelection
    from rltrace.trace.read.run import OpenedRun

_MOST_WORDS = 2
_AGAIN_S, _ENDS_WITHIN_S = 0.1, 5.0
_QUERY = re.compile(
    r"\s*(@|\(|/\*|(select|from|with|values|table|describe|summarize|show|pivot|unpivot|explain)[\s(])",
    re.IGNORECASE,
)
"""How a query begins; a path could, but hardly does."""


@command(short_help="Ask a run in SQL, or a query that has a name.")
@click.argument("words", nargs=-1, metavar="[RUN] SQL|@NAME", shell_complete=offered_questions)
@JSON
@click.option("--csv", "as_csv", is_flag=True)
@click.option("--list", "wanted", flag_value="list")
@click.option("--show", "wanted", flag_value="show")
@click.option("--timeout", "most_s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS")
@asks_of_a_part
def query(
    words: tuple[str, ...],
    as_json: bool,
    as_csv: bool,
    most_s: float | None,
    part: StepSelection | None,
    wanted: str | None,
) -> None:
    """Ask a run in SQL: `rltrace query "SELECT stage, seconds FROM stages"`, or by a name:
    `rltrace query @slowest_trajectories` (docs/reference/queries.md).

    RUN (by default the newest here) may stand before the query or behind it.
    """
    one_form({"--json": as_json, "--csv": as_csv})
    sql, run = _told_apart(words)
    if wanted and as_csv:
        raise WrongUsage(f"--{wanted} has no CSV: leave out --csv")
    if wanted == "list":
        _list(words, as_json)
        return
    if sql is None:
        of_run = f" of {run}" if run is not None else ""
        raise WrongUsage(f"say what to ask{of_run}: a SELECT or @NAME (--list shows them)")
    from rltrace.report.named_queries import named_query

    if wanted == "show":
        found = named_query(sql)
        if as_json:
            print_json({"name": f"@{found.name}", "explains": found.explains, "sql": found.sql})
        else:
            click.echo(found.sql, nl=False)
    else:
        asked = named_query(sql).sql if sql.startswith("@") else sql
        opened = _opened(run_path(run) if run is not None else None)
        if part is not None:
            from rltrace.analysis.timeline.analysed_part import narrow

            narrow(opened, part)
        if most_s is None and not is_of_here(opened.meta):
            most_s = FOREIGN_QUERY_S
        _answer(asked, opened, as_json, as_csv, most_s)


def _told_apart(words: tuple[str, ...]) -> tuple[str | None, str | None]:
    """The query and the run of a command line, in whichever order they stand."""
    if len(words) > _MOST_WORDS:
        raise WrongUsage(f"give one query and one run, not {len(words)} words")
    first, second = (*words, None, None)[:_MOST_WORDS]
    if first is None or _QUERY.match(first):
        return first, second
    is_run = "://" in first or os.path.isdir(first)  # pathlib raises for a long one
    return (second, first) if is_run or (second and _QUERY.match(second)) else (first, second)


def _list(words: tuple[str, ...], as_json: bool) -> None:
    from rltrace.report.named_queries import named_queries

    if words:
        raise WrongUsage(f"--list lists all queries: leave out {words[0]!r}")
    listed = named_queries()
    if as_json:
        print_json([{"name": f"@{one.name}", "explains": one.explains} for one in listed])
        return
    from rltrace.report.formats import query_output

    query_output.render_named(listed, console())


def _one_statement(sql: str) -> None:
    """Of several, DuckDB would answer the last and say nothing of the others."""
    import duckdb

    try:
        sql.encode()
    except UnicodeEncodeError:
        raise WrongUsage("the query is no text in this locale's encoding") from None
    try:
        number = len(duckdb.extract_statements(sql))
    except duckdb.Error:  # whoever runs it says what is wrong with it
        return
    if number > 1:
        raise WrongUsage(f"one query at a time: these are {number} statements")


def _opened(run: Path | None) -> OpenedRun:
    """The run, which is all that a query can read."""
    from rltrace.hooks.sample_api import identify
    from rltrace.run.run_folders import find_run, open_readable

    found = find_run(run)
    with working("reading the run"):
        opened = open_readable(found)
    opened.add_function("id_of", identify)
    opened.lock()
    return opened


def _answer(sql: str, opened: OpenedRun, as_json: bool, as_csv: bool, most_s: float | None) -> None:
    from rltrace.report.formats import query_output

    _one_statement(sql)

    def answer() -> None:
        relation = opened.sql(sql)
        if as_json:
            print_json(query_output.records(relation))
        elif as_csv:
            sys.stdout.write(query_output.csv(relation, shown=sys.stdout.isatty()))
        else:
            query_output.render(relation, console())

    _interruptible(opened, answer, most_s)


def _interruptible(run: OpenedRun, work: Callable[[], None], most_s: float | None) -> None:
    """Works in a thread of its own, for so long: in the main one DuckDB does not always hear of
    Ctrl-C. Errors: `RltraceError` (cannot tell) where it takes longer."""
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(work)
        said = f"this took more than {most_s or 0:g} s: --timeout allows more"
        why = RltraceError(said, CANNOT_TELL)
        try:
            if not wait([done], most_s).not_done:
                return done.result()
        except KeyboardInterrupt:
            why = RltraceError("interrupted", INTERRUPTED)
        ends_s = time.monotonic() + _ENDS_WITHIN_S
        while not done.done():  # a query that has not begun yet hears of none
            run.interrupt()
            wait([done], _AGAIN_S)
            if time.monotonic() > ends_s:  # it is no query any more that takes so long
                to_stderr(str(why))
                os._exit(why.exit_code)
        raise why
