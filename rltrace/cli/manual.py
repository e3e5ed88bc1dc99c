"""What `-h` says of a command beyond its options: manual.toml."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import click
from click.shell_completion import CompletionItem

from rltrace.trace.untrusted_files import packaged_toml

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
