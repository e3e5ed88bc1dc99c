"""Commands that show a run while it is going on."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rltrace.cli.manual import command
from rltrace.cli.options import JSON, RUN, print_json, say
from rltrace.cli.output import console


@command(short_help="Watch a run while it is going on.")
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

    Without RUN the newest one here. q quits. Where the output is no terminal, one frame is printed;
    with --json it is one snapshot.
    """
    from rltrace.run import top as top_
    from rltrace.run.location import find_run

    path = find_run(run)
    if as_json:
        from rltrace.report import live_json

        print_json(live_json.render(top_.snapshot(path)))
        return
    screen = console()
    if once or not screen.is_terminal:
        top_.show_once(path, screen)
        return
    job = top_.watch(path, screen, interval_s)
    say(f"{job.id}: {job.sentence}", err=not sys.stdout.isatty())
