"""Commands that write a run for another program."""

from __future__ import annotations

from pathlib import Path
from threading import Event
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
        raise RltraceError("--no-browser goes with --open", WRONG_USAGE)
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
