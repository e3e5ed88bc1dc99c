"""Commands that hand a run to other programs: Perfetto, Prometheus."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import click

from rltrace.cli import options
from rltrace.cli.manual import Command, command
from rltrace.cli.output import working
from rltrace.trace.errors import WrongUsage
from rltrace.trace.safe_text import visible_lines

if TYPE_CHECKING:
    from rltrace.trace.read.run import OpenedRun

_NICENESS = 10  # a job may want the machine meanwhile


@command()
@options.RUN
@click.option("-o", "--output", type=click.Path(path_type=Path))
@click.option(
    "--torch-profile", "profiled", multiple=True, type=click.Path(path_type=Path), metavar="PATH"
)
@click.option("--open", "opens", is_flag=True)
@click.option("--no-browser", is_flag=True)
@options.JSON
@options.reads_steps_of_a_run
def timeline(
    run: OpenedRun,
    output: Path | None,
    profiled: tuple[Path, ...],
    opens: bool,
    no_browser: bool,
    as_json: bool,
) -> None:
    """Write a timeline for Perfetto (ui.perfetto.dev)."""
    from dataclasses import asdict

    from rltrace.report import perfetto
    from rltrace.report.perfetto import serving, slices, torch_profile

    if no_browser and not opens:
        raise WrongUsage("--no-browser goes with --open")
    folder = serving.interface() if opens else None
    profiles = [torch_profile.read(f) for p in profiled for f in torch_profile.files_of(p)]
    path = output if output is not None else options.beside_rows(run, "timeline.pftrace.gz")
    with working("writing the timeline"):
        counts = perfetto.write(run, path, slices.find(run), profiles)
    where = "" if opens else "; open it at https://ui.perfetto.dev"
    said = f"{path}: {counts.slices:,} slices, {counts.arrows:,} arrows{where}"
    options.answer(as_json, {"path": str(path), "slices": counts.slices, **asdict(counts)}, said)
    if folder is not None:
        _show(path, folder, not no_browser)


def _show(path: Path, folder: Path, browser: bool) -> None:
    import webbrowser

    from rltrace.report.perfetto.serving import serving
    from rltrace.trace.read.bounds import let_go

    with serving(path, folder) as address:
        options.say(address, err=True)  # a line of its own, to be copied whole
        options.say("Ctrl-C ends it", err=True)
        if browser:
            let_go()
            webbrowser.open(address)
        try:
            Event().wait()
        except KeyboardInterrupt:
            click.echo("", err=True)


@click.group(short_help="For Prometheus.")
def export() -> None:
    """Hand a run's figures to what jobs are watched with."""


@export.command(cls=Command)
@options.RUN
@click.option("--port", type=click.IntRange(0, 65535), default=9464, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--lag-budget", type=click.IntRange(min=0), metavar="K")
@click.option("--until-end", is_flag=True)
@click.option("--once", is_flag=True)
@options.JSON
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

    The files in dashboards/ show them in Grafana: docs/how-to/dashboards.md.
    """
    from rltrace.report.formats.prometheus import exposition, to_json
    from rltrace.run.exporter import Exporter, serve
    from rltrace.run.run_folders import find_run

    exporter = Exporter(find_run(run), math.inf if lag_budget is None else lag_budget)
    if once:
        exporter.judge(waits=True)
        if as_json:
            options.print_json(to_json(exporter.values()))
        else:
            text = exposition(exporter.values())
            sys.stdout.write(visible_lines(text) if sys.stdout.isatty() else text)
        return

    def serving(url: str) -> None:
        said = f"{exporter.run}: {url} (Ctrl-C ends it)"
        options.answer(as_json, {"run": exporter.run, "url": url}, said)

    os.nice(_NICENESS)
    serve(exporter, host, port, until_end, serving)
