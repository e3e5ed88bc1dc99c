"""Commands that hand a run to other programs: Perfetto, Prometheus, TensorBoard, OpenTelemetry."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import click

from rltrace.cli.manual import Command, command
from rltrace.cli.options import JSON, RUN, beside_rows, print_json, reads_steps_of_a_run, say
from rltrace.trace.errors import WrongUsage
from rltrace.trace.printable import visible_lines

if TYPE_CHECKING:
    from rltrace.trace.run import Run


_NICENESS = 10  # a job may want the machine meanwhile
_OUTPUT = click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File to write (default: in the run)."
)


@command()
@RUN
@_OUTPUT
@click.option(
    "--torch-profile",
    "profiled",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Show what torch.profiler wrote, too: a trace, or a folder of them. Repeatable.",
)
@click.option("--open", "opens", is_flag=True, help="Show it in the Perfetto UI, served from here.")
@click.option("--no-browser", is_flag=True, help="With --open: start no browser.")
@JSON
@reads_steps_of_a_run
def timeline(
    run: Run,
    output: Path | None,
    profiled: tuple[Path, ...],
    opens: bool,
    no_browser: bool,
    as_json: bool,
) -> None:
    """Write a timeline for Perfetto (ui.perfetto.dev)."""
    from dataclasses import asdict

    from rltrace.report import perfetto
    from rltrace.report.perfetto import findings, serving, torch_profile

    if no_browser and not opens:
        raise WrongUsage("--no-browser goes with --open")
    folder = serving.interface() if opens else None
    profiles = [torch_profile.read(f) for p in profiled for f in torch_profile.files_of(p)]
    path = output if output is not None else beside_rows(run, "timeline.pftrace.gz")
    counts = perfetto.write(run, path, findings.find(run), profiles)
    if as_json:
        print_json({"path": str(path), "slices": counts.slices, **asdict(counts)})
    else:
        where = "" if opens else "; open it at https://ui.perfetto.dev"
        say(f"{path}: {counts.slices:,} slices, {counts.arrows:,} arrows{where}")
    if folder is not None:
        _show(path, folder, not no_browser)


def _show(path: Path, folder: Path, browser: bool) -> None:
    """Serves the timeline until Ctrl-C."""
    import webbrowser

    from rltrace.report.perfetto.serving import serving

    with serving(path, folder) as address:
        say(address, err=True)  # a line of its own, to be copied whole
        say("Ctrl-C ends it", err=True)
        if browser:
            webbrowser.open(address)
        try:
            Event().wait()
        except KeyboardInterrupt:
            click.echo("", err=True)


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


@export.command(cls=Command)
@RUN
@_OUTPUT
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
        raise WrongUsage("give -o or --endpoint, not both")
    if headers and endpoint is None:
        raise WrongUsage("--header goes with --endpoint")
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
        raise WrongUsage("--header is written as NAME=VALUE")  # it may be a secret
    return name.strip(), value
