"""What a shell offers after TAB: commands, options, runs, named queries."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from rltrace.cli.manual import command

_VARIABLE = "_RLTRACE_COMPLETE"  # as click derives it from the program's name


@command(short_help="Print what your shell needs to complete rltrace's words.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes commands, options, runs and named queries."""
    made = get_completion_class(shell)
    assert made is not None  # click brings all that the choice has
    click.echo(made(context.find_root().command, {}, "rltrace", _VARIABLE).source())


def runs(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """The runs here, newest first, and the folders of the place that was typed."""
    from rltrace.run.run_folders import list_runs
    from rltrace.trace.run_dir import RUNS_FOLDER

    here = [str(path) for path in reversed(list_runs())] if Path(RUNS_FOLDER).is_dir() else []
    offered = [CompletionItem(path) for path in here if path.startswith(typed)]
    return [*offered, CompletionItem(typed, type="dir")] if typed or not offered else offered


def questions(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    from rltrace.report.named_queries import named_queries

    if typed.startswith("@"):
        near = (query for query in named_queries() if query.name.startswith(typed[1:]))
        return [CompletionItem(f"@{query.name}", help=query.explains) for query in near]
    return runs(context, parameter, typed)


def frameworks(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    from rltrace.importers.log_detection import importers

    return [CompletionItem(name) for name in importers() if name.startswith(typed)]
