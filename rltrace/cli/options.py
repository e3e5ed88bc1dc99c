"""What commands share: their run, the form of their answer, and the paths that they make."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

import rltrace
from rltrace.trace.errors import WRONG_USAGE, RltraceError

RUN = click.argument("run", required=False, type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class NewFolder(click.Path):
    """A path that is not empty: `--out "$UNSET"` must not mean the working directory."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The path. Errors: `RltraceError` where it is empty."""
        if value == "":
            raise RltraceError("--out is empty: name the run directory to make", WRONG_USAGE)
        return super().convert(value, param, ctx)


def reads_a_run(function: Callable[..., None]) -> Callable[..., None]:
    """Opens the run that a command names, or the newest here."""

    @wraps(function)
    def command(run: Path | None, **options: Any) -> None:
        from rltrace.run.location import find_run

        function(run=rltrace.open_run(find_run(run)), **options)

    return command


def one_form(asked: dict[str, bool]) -> None:
    """Errors: `RltraceError` where an answer is asked for in two forms."""
    forms = [option for option, given in asked.items() if given]
    if len(forms) > 1:
        raise RltraceError(f"give one of {' and '.join(forms)}", WRONG_USAGE)


def print_json(value: object) -> None:
    """Prints a value as JSON; what JSON does not know, as its text."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))
