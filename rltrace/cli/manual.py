"""What `-h` says of a command beyond its options (manual.toml), and what TAB offers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from rltrace.trace.untrusted_files import packaged_toml

_VARIABLE = "_RLTRACE_COMPLETE"  # as click derives it from the program's name
_OF_EVERY_COMMAND = "0  fine", "2  wrong usage", "4  unreadable or missing"


@cache
def pages() -> dict[str, dict[str, Any]]:
    """By command: its `options`, `examples`, `exits`, `files`, `see`."""
    return packaged_toml("cli/manual.toml")


class Command(click.Command):
    """A command of which manual.toml tells what its options are for, and the rest of `-h`."""

    def _page(self, ctx: click.Context) -> dict[str, Any]:
        return pages().get(ctx.command_path.partition(" ")[2], {})

    def _explain(self, ctx: click.Context) -> None:
        """Gives the options their help, but for those which all commands share."""
        said = self._page(ctx).get("options", {})
        for option in self.params:
            if isinstance(option, click.Option) and option.help is None:
                option.help = said.get(option.opts[-1])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self._explain(ctx)
        super().format_options(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        self._explain(ctx)
        return super().shell_complete(ctx, incomplete)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        page = self._page(ctx)
        if examples := page.get("examples"):
            with formatter.section("Examples"):
                for command, does in examples:
                    _put(formatter, f"{command}", f"  {does}")
        with formatter.section("Exit codes"):
            _put(formatter, *exit_codes(page.get("exits", ())))
        if found := page.get("files"):
            with formatter.section("Files"):
                _put(formatter, *found)
        if page.get("see"):
            with formatter.section("See also"):
                _put(formatter, page["see"])


def exit_codes(own: Sequence[str]) -> list[str]:
    """One a line: `own` and those of every command; where `own` are no numbers, they alone."""
    if not all(code[0].isdigit() for code in own):
        return list(own)
    return sorted([*_OF_EVERY_COMMAND, *own])


def _put(formatter: click.HelpFormatter, *lines: str) -> None:
    """Lines as they are: a command line that is broken cannot be copied."""
    for line in lines:
        formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


command = partial(click.command, cls=Command)


@command("help", short_help="What a command does and takes.")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> None:
    """What a command does and takes: `rltrace help report`."""
    assert ctx.parent is not None
    context = ctx.parent
    for word in words:
        if not isinstance(context.command, click.Group):
            break
        name, found, _ = context.command.resolve_command(context, [word])
        assert found is not None
        context = click.Context(found, info_name=name, parent=context)
    click.echo(context.command.get_help(context))


@command(short_help="Print what your shell needs to complete rltrace's words.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes commands, options, runs and named queries."""
    made = get_completion_class(shell)
    assert made is not None  # click brings all that the choice has
    click.echo(made(context.find_root().command, {}, "rltrace", _VARIABLE).source())


def offered_runs(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """The runs here, newest first, and the folders of the place that was typed."""
    from rltrace.run.run_folders import list_runs
    from rltrace.trace.run_dir import RUNS_FOLDER

    here = [str(path) for path in reversed(list_runs())] if Path(RUNS_FOLDER).is_dir() else []
    offered = [CompletionItem(path) for path in here if path.startswith(typed)]
    return [*offered, CompletionItem(typed, type="dir")] if typed or not offered else offered


def offered_questions(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    from rltrace.report.named_queries import named_queries

    if typed.startswith("@"):
        near = (query for query in named_queries() if query.name.startswith(typed[1:]))
        return [CompletionItem(f"@{query.name}", help=query.explains) for query in near]
    return offered_runs(context, parameter, typed)


def offered_frameworks(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    from rltrace.importers.log_detection import importers

    return [CompletionItem(name) for name in importers() if name.startswith(typed)]
