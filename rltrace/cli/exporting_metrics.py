"""Commands that hand a run's figures to what people watch jobs with."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import click

from rltrace.cli.manual import Command
from rltrace.cli.options import JSON, RUN, print_json, say
from rltrace.trace.printable import visible_lines

_NICENESS = 10  # a job may want the machine meanwhile


@click.group(short_help="For Prometheus, TensorBoard and OpenTelemetry.")
def export() -> None:
    """Hand a run's figures to what jobs are watched with."""


@export.command(cls=Command)
@RUN
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9464,
    show_default=True,
    help="Port to listen on; 0: any that is free.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--lag-budget",
    type=click.IntRange(min=0),
    metavar="K",
    help="Older samples count as not useful, and are what the alert on lag is about.",
)
@click.option("--until-end", is_flag=True, help="End a minute after the job has.")
@click.option("--once", is_flag=True, help="Print the metrics, and serve nothing.")
@JSON
def prometheus(
    run: Path | None,
    port: int,
    host: str,
    lag_budget: int | None,
    until_end: bool,
    once: bool,
    as_json: bool,
) -> None:
    """Serve a run's metrics to Prometheus, while the job runs or afterwards.

    The files in dashboards/ show them in Grafana: docs/dashboards.md.
    """
    from rltrace.report.prometheus import exposition, to_json
    from rltrace.run.exporter import Exporter, serve
    from rltrace.run.location import find_run

    exporter = Exporter(find_run(run), math.inf if lag_budget is None else lag_budget)
    if once:
        if as_json:
            print_json(to_json(exporter.values()))
        else:
            text = exposition(exporter.values())
            sys.stdout.write(visible_lines(text) if sys.stdout.isatty() else text)
        return

    def serving(url: str) -> None:
        if as_json:
            print_json({"run": exporter.run, "url": url})
        else:
            say(f"{exporter.run}: {url} (Ctrl-C ends it)")

    os.nice(_NICENESS)
    serve(exporter, host, port, until_end, serving)


@export.command(cls=Command)
@RUN
@click.option(
    "--logdir",
    required=True,
    type=click.Path(path_type=Path),
    help="Where the job itself logs; the summaries go into its folder `rltrace`.",
)
@JSON
def tensorboard(run: Path | None, logdir: Path, as_json: bool) -> None:
    """Write a summary of each step beside the job's own TensorBoard log, until the job has ended.

    Nothing is done in the job, and its own log is left alone.
    """
    from rltrace.run.location import find_run
    from rltrace.run.signals import ended_by_signal
    from rltrace.run.step_log import log_steps

    os.nice(_NICENESS)
    with ended_by_signal() as ended:
        path, steps = log_steps(find_run(run), logdir, ended.wait, lambda said: say(said, err=True))
    if as_json:
        print_json({"path": str(path), "steps": steps})
    else:
        say(f"{path}: {steps} steps")
