"""Commands that show what a run holds."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rltrace.cli import options
from rltrace.cli.manual import command
from rltrace.cli.output import console, working
from rltrace.trace.errors import WrongUsage

if TYPE_CHECKING:
    from rich.console import Console

    from rltrace.trace.read.framework_figure import OwnFigure
    from rltrace.trace.read.run import OpenedRun

_CHEAPEST, _DEAREST = 1e-4, 1e6  # US$ per device-hour; what is beyond is a slip
_INTERVAL_S = click.FloatRange(min=0.1, max=3600)


@command(short_help="The wall, where a step goes, what to change: on one screen.")
@options.RUN
@options.FULL
@click.option("--short", is_flag=True)
@options.JSON
@click.option("--markdown", is_flag=True)
@click.option("--price", type=float, metavar="USD")
@click.option("--lag-budget", type=click.IntRange(min=0), metavar="K")
@click.option("--own-figures", is_flag=True)
@click.option("--svg", type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path))
@options.reads_steps_of_a_run_or_log
def report(
    run: OpenedRun, full: bool, short: bool, as_json: bool, markdown: bool, price: float | None,
    lag_budget: int | None, own_figures: bool, svg: Path | None, html: Path | None,
) -> None:  # fmt: skip
    """What limits the job (the wall), where a step goes, what to change, how good the data is.

    RUN is a run, or the log of a job that was not traced: a console log, JSON lines, an export of
    TensorBoard, W&B or a profiler, or - for what comes in.
    """
    from rltrace.analysis.run_analysis import RunAnalysis
    from rltrace.analysis.summary import summary_of

    files = {"--full": short and full, "--svg": svg is not None, "--html": html is not None}
    options.one_form({"--short": short, "--json": as_json, "--markdown": markdown, **files})
    if price is not None and not _CHEAPEST <= price <= _DEAREST:
        limits = f"from {_CHEAPEST:g} to {_DEAREST:,.0f}"
        raise WrongUsage(f"--price must be US$ for an hour of a device, {limits}, not {price:g}")
    budget = math.inf if lag_budget is None else lag_budget
    analysis = RunAnalysis(run, price, budget)
    if short:
        from rltrace.report.screen import in_short

        options.say(in_short(analysis))
        return
    whole = as_json or markdown or html is not None or full or own_figures
    own: tuple[OwnFigure, ...] = ()
    with working("analysing the run"):
        if whole:
            from rltrace.report.sections.evidence_sections import figures_of

            own = figures_of(run)
        summary = summary_of(analysis, own)
    if as_json:
        from rltrace.report.formats import to_json

        options.print_json(to_json.render(summary))
    elif markdown:
        from rltrace.report.formats import markdown as markdown_report

        click.echo(markdown_report.render(summary, own_figures))
    elif html is not None:
        from rltrace.report import html as page

        size_bytes = page.write(analysis, summary, html, own_figures)
        options.say(f"{html}: {size_bytes / 1e3:,.0f} kB; open it in a browser")
    else:

        def draw(on: Console) -> None:
            if whole:
                from rltrace.report.formats import terminal

                terminal.render(summary, on, own_figures)
            else:
                from rltrace.report import screen

                screen.render(summary, on)

        if svg is not None:
            from rltrace.report.formats.terminal import write_svg

            write_svg(draw, svg)
            options.say(str(svg))
        else:
            draw(console())


@command()
@options.RUN
@options.JSON
@options.opens_a_run
def info(run: OpenedRun, as_json: bool) -> None:
    """What a run holds: processes, rows, files, clocks, problems."""
    from rltrace.report import run_contents

    found = run_contents.inventory(run)
    options.answer(as_json, asdict(found), [run_contents.section(found)])


@command("ls", short_help="The runs here, or in a folder.")
@click.argument("folder", required=False)
@options.JSON
def list_runs(folder: str | None, as_json: bool) -> None:
    """The runs here, or in FOLDER (a path, or the URL of where runs are shipped), oldest first."""
    from rltrace.report import run_listing
    from rltrace.run.run_folders import list_runs as list_runs_

    if folder is not None and "://" in folder:
        entries = run_listing.entries_at(folder)
    else:
        entries = run_listing.entries(list_runs_(Path(folder) if folder is not None else None))
    if as_json:
        options.print_json([asdict(entry) for entry in entries])
    else:
        run_listing.render(entries, console())


@command(short_help="What rltrace can see here, and what is wrong with RUN.")
@options.RUN
@options.JSON
def doctor(run: Path | None, as_json: bool) -> None:
    """What rltrace can see here: frameworks, hooks, GPUs, disk; and what is wrong with RUN."""
    from rltrace.run import doctor as doctor_

    with working("looking"):
        findings = doctor_.examine(run)
    options.answer(as_json, doctor_.to_json(findings), doctor_.sections(findings))
    sys.exit(0 if findings.healthy else 1)


@command(short_help="Turn a run into Parquet, for keeping.")
@options.RUN
@click.option("--delete-segments", is_flag=True)
@options.JSON
@options.reads_a_run
def compact(run: OpenedRun, delete_segments: bool, as_json: bool) -> None:
    """Turn a run into Parquet, for keeping: about a fifth of the size, and faster to read. While
    the job runs, only finished files are turned. A run at a URL stays as it is: its copy here is
    turned."""
    from rltrace.report import units
    from rltrace.trace.compact import compaction
    from rltrace.trace.transfer.remote_runs import brought_from

    if delete_segments:
        compaction.check_deletable(run)

    with working("compacting") as tell:
        done = compaction.compact(run, tell)
    if delete_segments:
        compaction.delete_segments(run.path)
    before, after = sum(done.segment_bytes.values()), sum(done.parquet_bytes.values())
    sizes = f"{units.size(before)} of segments → {units.size(after)}"
    there = before and not delete_segments
    kept = "; the segments are kept (--delete-segments)" if there else ""
    if not done.settled:
        kept = "; the job goes on, and the rest is read from its segments"
    if (url := brought_from(run.path)) is not None:
        kept = f"; this is a copy, and {url} stays as it is"
    said = f"{run.path}: {sum(done.rows.values()):,} rows, {sizes}{kept}"
    options.answer(as_json, {"path": str(run.path), **asdict(done)}, said)


@command(short_help="Watch a run while it is going on.")
@options.RUN
@click.option("--once", is_flag=True)
@click.option(
    "--interval", "interval_s", type=_INTERVAL_S, default=1.0, show_default=True, metavar="SECONDS"
)
@options.JSON
def top(run: Path | None, once: bool, interval_s: float, as_json: bool) -> None:
    """Watch a run while it is going on: its step, stages, tokens, lag, queue, devices.

    Without RUN the newest one here. q quits. Where the output is no terminal, one frame is printed;
    with --json it is one snapshot.
    """
    from rltrace.run import top as top_
    from rltrace.run.run_folders import find_run

    path = find_run(run)
    if as_json:
        from rltrace.report.formats import to_json

        options.print_json(to_json.of_snapshot(top_.snapshot(path)))
        return
    screen = console()
    if once or not screen.is_terminal:
        top_.show_once(path, screen)
        return
    job = top_.watch(path, screen, interval_s)
    options.say(f"{job.id}: {job.sentence}", err=not sys.stdout.isatty())


@command(short_help="Who a job waits for, and each thread's stack.")
@options.RUN
@options.JSON
def stacks(run: Path | None, as_json: bool) -> None:
    """Who a job that stands still waits for, and where each thread of its processes on this node
    is: twice, two seconds apart. No process is stopped for it."""
    from rltrace.run.run_folders import find_run
    from rltrace.run.stuck import on_demand

    with working("looking"):
        stuck, seen = on_demand(find_run(run))
    if as_json:
        processes = {who: asdict(one) for who, one in seen.items()}
        options.print_json({"stuck": stuck.told(), "processes": processes})
        return
    for label, says in stuck.lines():
        options.say(f"{label:<8}{says}")
    for process in seen.values():
        for thread in (thread for thread in process.threads if thread.frames):
            options.say("")
            options.say(f"pid {process.pid}, thread {thread.tid} {thread.name}: {thread.wait}")
            for frame in thread.frames:
                options.say(f"  {frame.file}:{frame.line} {frame.function}")
