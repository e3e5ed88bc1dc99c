"""How every command ends: with its answer, or with one sentence on stderr and an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from traceback import extract_tb
from typing import Any, NoReturn

import click

from rltrace import __version__
from rltrace.cli import output
from rltrace.trace.errors import (
    INTERRUPTED,
    NO_MEMORY,
    OUR_MISTAKE,
    UNREADABLE,
    WRONG_USAGE,
    RltraceError,
)
from rltrace.trace.printable import visible

_PACKAGE = Path(__file__).resolve().parent.parent
_TRACEBACK = "RLTRACE_TRACEBACK"
"""A variable that has a mistake of ours shown whole."""

_DUCKDB_INTERRUPTED = "Query interrupted"
"""What DuckDB makes of Ctrl-C while it works."""

_GUESSES = re.compile(r"\.? \(?Did you mean (?:one of: )?(.*?)\?\)?$")


class Commands(click.Group):
    """A click group whose failures are one sentence and the exit code of docs/api.md."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they were added, not by name."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """As click's, which takes a closed pipe for a failure."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `rltrace query ... | head`
            output.discard()
            ctx.exit(0)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """As click's, which says the same things in a style of its own."""
        if os.name == "nt":
            _fail("Windows is not supported: rltrace records on Linux (WSL is one)", UNREADABLE)
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        output.prepare()
        try:
            try:
                code = super().main(args, prog_name, complete_var, False, **extra)
            finally:  # here, where it can be said that nobody takes it
                if sys.stdout is not None:
                    sys.stdout.flush()
        except RltraceError as error:
            _fail(str(error), error.exit_code)
        except click.ClickException as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # click has it since 8.2
                click.echo(error.format_message(), err=True)
                sys.exit(WRONG_USAGE)
            _fail(_sentence(error), WRONG_USAGE)
        except (click.Abort, KeyboardInterrupt):
            _fail("interrupted", INTERRUPTED)
        except RuntimeError as error:
            if str(error) != _DUCKDB_INTERRUPTED:
                raise
            _fail("interrupted", INTERRUPTED)
        except MemoryError:
            _fail(NO_MEMORY, UNREADABLE)
        except OSError as error:
            output.discard()
            if isinstance(error, BrokenPipeError):
                sys.exit(0)
            _fail(_of_file(error), UNREADABLE)
        except Exception as error:
            if (said := _of_duckdb(error)) is not None:
                _fail(str(said), said.exit_code)
            if os.environ.get(_TRACEBACK):
                raise
            _fail(_of_ours(error), OUR_MISTAKE)
        sys.exit(code if isinstance(code, int) else 0)


def _fail(sentence: str, code: int) -> NoReturn:
    with suppress(OSError):  # nobody listens any more
        click.echo(f"rltrace: {visible(sentence)}", err=True)
    sys.exit(code)


def _sentence(error: click.ClickException) -> str:
    """What click says of a wrong command line, in our style, and where the right ones stand."""
    said = _GUESSES.sub(r" (did you mean \1?)", error.format_message()).rstrip(".")
    said = said[:1].lower() + said[1:]
    context = getattr(error, "ctx", None)
    return f"{said}; see `{context.command_path} -h`" if context is not None else said


def _of_duckdb(error: Exception) -> RltraceError | None:
    """What is said where DuckDB could not go on; None where something else failed."""
    duckdb = sys.modules.get("duckdb")  # few commands need it
    if duckdb is None or not isinstance(error, duckdb.Error):
        return None
    from rltrace.trace.refused import failed, first_line

    return failed(error) or RltraceError(f"the run cannot be told: {first_line(error)}")


def _of_ours(error: Exception) -> str:
    """What is said of a mistake of rltrace's own: what and where it was, and what helps."""
    *_, frame = (f for f in extract_tb(error.__traceback__) if _PACKAGE in Path(f.filename).parents)
    where = f"{Path(frame.filename).relative_to(_PACKAGE.parent)}:{frame.lineno}"
    return (
        f"this is a mistake in rltrace {__version__} ({type(error).__name__} at {where}), or its "
        f"files were changed: please report it with what `{_TRACEBACK}=1` shows"
    )


def _of_file(error: OSError) -> str:
    why, where = error.strerror or str(error), error.filename
    if isinstance(where, (str, bytes)):
        return f"{os.fsdecode(where)}: {why}"
    return why[:1].lower() + why[1:]
