"""The group of all commands: help by heading, and what failures say."""

from __future__ import annotations

import os
import re
import sys
from collections import UserDict
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from traceback import extract_tb
from typing import Any

import click

from rltrace import __version__
from rltrace.cli import output
from rltrace.entry import TRACEBACK, ended
from rltrace.trace import errors
from rltrace.trace.read.bounds import short_of_space
from rltrace.trace.safe_text import visible

_PACKAGE = Path(__file__).resolve().parent.parent
_NO_THREAD = "can't start new thread"  # what Python says of it
_GUESSES = re.compile(r"\.? \(?Did you mean (?:one of: )?(.*?)\?\)?$")


class LateCommands(UserDict[str, Any]):
    """Commands by name, each imported once it is asked for; what they are made of is their place
    below `rltrace.cli`, `module:function`."""

    def __getitem__(self, name: str) -> Any:
        return resolve_name(f"rltrace.cli.{self.data[name]}")


class Commands(click.Group):
    """A click group whose failures are one sentence and an exit code (docs/reference/api.md).
    `headings` has the places of its commands by heading in `-h` and name."""

    def __init__(self, *args: Any, headings: Mapping[str, Mapping[str, str]], **more: Any) -> None:
        super().__init__(*args, **more)
        self.headings = headings
        self.commands = LateCommands(p for of in headings.values() for p in of.items())

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of `-h`."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, self.commands))
        for heading, names in self.headings.items():
            rows = [
                (name.ljust(longest), self.commands[name].get_short_help_str(64)) for name in names
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `rltrace query ... | head`
            output.discard()
            ctx.exit(0)

    def main(self, *args: Any, standalone_mode: bool = True, **more: Any) -> Any:
        def command() -> Any:
            output.prepare()
            run: Any = super(Commands, self).main
            return run(*args, standalone_mode=False, **more)

        return ended(command) if standalone_mode else command()


def told(error: BaseException) -> tuple[str, int]:
    if isinstance(error, errors.RltraceError):
        return visible(str(error)), error.exit_code
    if isinstance(error, click.ClickException):
        if type(error).__name__ == "NoArgsIsHelpError":  # click has it since 8.2
            click.echo(error.format_message(), err=True)
            return "", errors.WRONG_USAGE
        return visible(_sentence(error)), errors.WRONG_USAGE
    if isinstance(error, click.Abort):
        return "interrupted", errors.INTERRUPTED
    # What DuckDB lacks while pyarrow asks for its rows is an OSError without a number.
    if isinstance(error, MemoryError) or (
        isinstance(error, OSError) and "Out of Memory" in str(error)
    ):
        return short_of_space() or errors.NO_MEMORY, errors.UNREADABLE
    if isinstance(error, OSError):
        output.discard()
        if isinstance(error, BrokenPipeError):
            return "", errors.OK
        why, where = error.strerror or errors.first_line(error), error.filename
        said = why[:1].lower() + why[1:]
        if isinstance(where, (str, bytes)):
            said = visible(f"{os.fsdecode(where)}: {why}")
        return said, errors.UNREADABLE
    if (known := _of_duckdb(error)) is not None:
        return visible(str(known)), known.exit_code
    if said := short_of_space() or (errors.NO_THREAD if str(error) == _NO_THREAD else ""):
        return said, errors.UNREADABLE
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("rltrace"):
        extra = "[sync]" if error.name in ("xxhash", "zstandard") else ""
        said = f"{error.name} is not installed: pip install 'rltrace-toolkit{extra}'"
        return visible(said), errors.UNREADABLE
    return _of_ours(error), errors.OUR_MISTAKE


def _sentence(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split())  # choices come a line each
    said = _GUESSES.sub(r" (did you mean \1?)", message).rstrip(".")
    said = said[:1].lower() + said[1:]
    context = getattr(error, "ctx", None)
    return f"{said}; see `{context.command_path} -h`" if context is not None else said


def _of_duckdb(error: BaseException) -> errors.RltraceError | None:
    duckdb = sys.modules.get("duckdb")  # few commands need it
    if duckdb is None or not isinstance(error, duckdb.Error):
        return None
    from rltrace.trace.read.sql_views import failed

    said = f"the run cannot be told: {errors.first_line(error)}"
    return failed(error) or errors.RltraceError(said)


def _of_ours(error: BaseException) -> str:
    *_, frame = (f for f in extract_tb(error.__traceback__) if _PACKAGE in Path(f.filename).parents)
    where = f"{Path(frame.filename).relative_to(_PACKAGE.parent)}:{frame.lineno}"
    return (
        f"this is a mistake in rltrace {__version__} ({type(error).__name__} at {where}), or its "
        f"files were changed: please report it with what `{TRACEBACK}=1` shows"
    )
