"""`rltrace export otlp`: a run for what people look at other programs' traces with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rltrace.cli.manual import command
from rltrace.cli.options import JSON, RUN, beside_rows, print_json, reads_steps_of_a_run, say
from rltrace.trace.errors import WRONG_USAGE, RltraceError

if TYPE_CHECKING:
    from rltrace.trace.run import Run


@command()
@RUN
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File to write (default: in the run)."
)
@click.option("--endpoint", metavar="URL", help="Send it to a collector (OTLP over HTTP, JSON).")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="With --endpoint: sent along, a token for instance. Repeatable.",
)
@JSON
@reads_steps_of_a_run
def otlp(
    run: Run, output: Path | None, endpoint: str | None, headers: tuple[str, ...], as_json: bool
) -> None:
    """Hand a run's spans to OpenTelemetry: a file of OTLP JSON, or a collector.

    A step is a trace, and so is each trajectory, linked to the step that trained on it.
    """
    from rltrace.report.otlp import write
    from rltrace.run.otlp_sender import send

    if endpoint is not None and output is not None:
        raise RltraceError("give -o or --endpoint, not both", WRONG_USAGE)
    if headers and endpoint is None:
        raise RltraceError("--header goes with --endpoint", WRONG_USAGE)
    if endpoint is not None:
        where, exported = send(run, endpoint, dict(map(_header, headers)))
    else:
        path = output if output is not None else beside_rows(run, "spans.otlp.jsonl")
        where, exported = str(path), write(run, path)
    if as_json:
        by_table = dict(exported.spans)
        print_json({"to": where, "spans": by_table, "unended": exported.unended})
    else:
        unended = f"; {exported.unended:,} that never ended are left out" * (exported.unended > 0)
        say(f"{where}: {exported.total:,} spans{unended}")


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise RltraceError("--header is written as NAME=VALUE", WRONG_USAGE)  # it may be a secret
    return name.strip(), value
