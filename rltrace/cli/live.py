"""Commands that show a run while it is going on."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rltrace.cli.options import JSON, RUN, one_form, print_json


@click.command()
@RUN
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1, max=3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@JSON
def top(run: Path | None, once: bool, interval_s: float, as_json: bool) -> None:
    """Watch a run while it is going on: its step, stages, tokens, lag, queue, devices.

    Without RUN the newest one here. q quits. Where the output is no terminal, one frame is printed.
    """
    from rich.console import Console

    from rltrace.run import top as top_
    from rltrace.run.location import find_run

    one_form({"--once": once, "--json": as_json})
    path = find_run(run)
    if as_json:
        from rltrace.report import live_json

        print_json(live_json.render(top_.snapshot(path)))
        return
    console = Console()
    if once or not console.is_terminal:
        top_.show_once(path, console)
        return
    job = top_.watch(path, console, interval_s)
    click.echo(f"{job.id}: {job.sentence}", err=not sys.stdout.isatty())
