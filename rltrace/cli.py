"""The command line: parse, call, print. What a command does lives in the floors below."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import rltrace
from rltrace.trace.errors import WRONG_USAGE, RltraceError

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_RUN = click.argument("run", required=False, type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class _NewFolder(click.Path):
    """A path that is not empty: `--out "$UNSET"` must not mean the working directory."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value == "":
            raise RltraceError("--out is empty: name the run directory to make", WRONG_USAGE)
        return super().convert(value, param, ctx)


class _Commands(click.Group):
    """A click group whose failures are one sentence and the exit code of docs/api.md."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RltraceError as error:
            click.echo(f"rltrace: {error}", err=True)
            ctx.exit(error.exit_code)
        except BrokenPipeError:  # `rltrace query ... | head`
            sys.stderr.close()
            ctx.exit(0)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(rltrace.__version__, prog_name="rltrace")
def main() -> None:
    """Where an LLM RL post-training step goes, how stale its data is, and which stage binds.

    \b
    rltrace wrap -- python train.py    trace every process of a job, no code changed
    rltrace report                     the verdict on the newest run here

    Exit codes: 0 fine, 1 the answer is no, 2 wrong usage, 3 cannot tell, 4 unreadable or missing.
    """


class _Wrap(click.Command):
    """`--probe` takes several words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from rltrace.run.probe_options import with_stages_joined

        return super().parse_args(ctx, with_stages_joined(args))


@main.command(cls=_Wrap, context_settings={"allow_interspersed_args": False})
@click.option("--out", type=_NewFolder(path_type=Path), help="Run directory to make.")
@click.option(
    "--hook",
    "hooks",
    multiple=True,
    metavar="MODULE:NAME=STAGE",
    help="Trace a function of yours too, e.g. `__main__:generate=rollout`. Repeatable.",
)
@click.option(
    "--probe",
    is_flag=False,
    flag_value="all",
    metavar="[STAGE...]",
    help="Delay stages at random steps, to measure which hold the step up (docs/probe.md).",
)
@click.option(
    "--probe-budget", metavar="SHARE", help="Of the job's time, at most 12.5%.  [default: 5%]"
)
@click.option("--probe-seed", type=int, help="Draws the steps.  [default: a random one]")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def wrap(
    out: Path | None,
    hooks: tuple[str, ...],
    probe: str | None,
    probe_budget: str | None,
    probe_seed: int | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND with every process of it traced: `rltrace wrap -- python train.py`."""
    from rltrace.run.probe_options import design_of
    from rltrace.run.wrap import wrap as wrap_

    design = None
    if probe is not None:
        design = design_of(probe, probe_budget, probe_seed)
    elif probe_budget is not None or probe_seed is not None:
        raise RltraceError("--probe-budget and --probe-seed go with --probe", WRONG_USAGE)

    if not command:
        raise RltraceError(
            "give the command to trace: `rltrace wrap -- python train.py`", WRONG_USAGE
        )
    sys.exit(wrap_(list(command), out, list(hooks), design))


@main.command("import")
@click.argument("framework")
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--out", type=_NewFolder(path_type=Path), help="Run directory to make.")
@_JSON
def import_log(framework: str, log: Path, out: Path | None, as_json: bool) -> None:
    """Make a run of a finished job's LOG: `rltrace import verl metrics.jsonl`.

    FRAMEWORK is verl or openrlhf. LOG is JSON lines, a console log, a TensorBoard event file, a
    `run-*.wandb`, or a directory of one of the last two.
    """
    from dataclasses import asdict

    from rltrace.run.importing import import_log as import_log_

    done = import_log_(framework, log, out)
    if as_json:
        _print_json(asdict(done))
        return
    for note in done.log_notes:
        click.echo(note)
    steps = f"steps {done.first_step} to {done.last_step}" if done.steps else "no step"
    click.echo(
        f"{done.framework} ({done.trainer}), {done.kind}: {done.steps} steps ({steps}), "
        f"{done.spans:,} spans, {done.readings:,} readings of counters"
    )
    click.echo(f"the run is in {done.path}; next: rltrace report {shlex.quote(done.path)}")


def _reads_a_run(function: Callable[..., None]) -> Callable[..., None]:
    """Opens the run that a command names, or the newest here."""

    @wraps(function)
    def command(run: Path | None, **options: Any) -> None:
        from rltrace.run.location import find_run

        function(run=rltrace.open_run(find_run(run)), **options)

    return command


def _one_form(asked: dict[str, bool]) -> None:
    """Errors: `RltraceError` where an answer is asked for in two forms."""
    forms = [option for option, given in asked.items() if given]
    if len(forms) > 1:
        raise RltraceError(f"give one of {' and '.join(forms)}", WRONG_USAGE)


@main.command()
@_RUN
@_JSON
@click.option("--markdown", is_flag=True, help="Print Markdown.")
@click.option(
    "--price",
    type=click.FloatRange(min=0),
    metavar="USD",
    help="US$ per device-hour, instead of the table's.",
)
@click.option(
    "--lag-budget",
    type=click.IntRange(min=0),
    metavar="K",
    help="Older samples count as not useful.",
)
@click.option(
    "--own-figures",
    is_flag=True,
    help="What the framework logs itself beside what ran, and why they differ.",
)
@click.option("--svg", type=click.Path(path_type=Path), help="Write it as a picture.")
@_reads_a_run
def report(
    run: Run,
    as_json: bool,
    markdown: bool,
    price: float | None,
    lag_budget: int | None,
    own_figures: bool,
    svg: Path | None,
) -> None:
    """Where the step went, how stale the data was, which stage binds."""
    from rltrace.analysis.summary import summarize
    from rltrace.report.own_figures_section import figures_of

    _one_form({"--json": as_json, "--markdown": markdown, "--svg": svg is not None})
    if price is not None and not math.isfinite(price):
        raise RltraceError(f"--price must be a number of US$, not {price}", WRONG_USAGE)
    budget = math.inf if lag_budget is None else lag_budget
    summary = summarize(run, price, budget, figures_of(run))
    if as_json:
        from rltrace.report import to_json

        _print_json(to_json.render(summary))
    elif markdown:
        from rltrace.report import markdown as markdown_report

        click.echo(markdown_report.render(summary, own_figures))
    elif svg is not None:
        from rltrace.report import picture

        picture.write_svg(summary, svg, own_figures)
        click.echo(str(svg))
    else:
        from rich.console import Console

        from rltrace.report import terminal

        terminal.render(summary, Console(), own_figures)


@main.command()
@click.argument("sql")
@_RUN
@_JSON
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@_reads_a_run
def query(run: Run, sql: str, as_json: bool, as_csv: bool) -> None:
    """Ask a run in SQL: `rltrace query "SELECT stage, seconds FROM stages"`."""
    from rltrace.report import rows

    _one_form({"--json": as_json, "--csv": as_csv})
    relation = run.sql(sql)
    if as_json:
        _print_json(rows.records(relation))
    elif as_csv:
        click.echo(rows.csv(relation), nl=False)
    else:
        from rich.console import Console

        rows.render(relation, Console())


@main.command()
@_RUN
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File to write (default: in the run)."
)
@_JSON
@_reads_a_run
def timeline(run: Run, output: Path | None, as_json: bool) -> None:
    """Export a timeline for ui.perfetto.dev."""
    from dataclasses import asdict

    from rltrace.report import perfetto

    path = output if output is not None else run.path / "timeline.pftrace.gz"
    counts = perfetto.write(run, path)
    if as_json:
        _print_json({"path": str(path), **asdict(counts)})
    else:
        click.echo(f"{path}: {counts.slices:,} slices; open it at https://ui.perfetto.dev")


@main.command()
@_RUN
@_JSON
@_reads_a_run
def info(run: Run, as_json: bool) -> None:
    """What a run holds: processes, rows, files, clocks, problems."""
    from rltrace.report import inventory

    found = inventory.inventory(run)
    if as_json:
        _print_json(inventory.to_json(found))
    else:
        from rich.console import Console

        inventory.render(found, Console())


@main.command()
@_RUN
@click.option(
    "--stages",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Stage seconds in a TOML file (docs/whatif.md), instead of a run.",
)
@click.option(
    "--lever",
    "moves",
    multiple=True,
    metavar="NAME=VALUE",
    help="What to change, e.g. `placement=async`. Repeatable: together. None: all, one at a time.",
)
@_JSON
def whatif(run: Path | None, stages: Path | None, moves: tuple[str, ...], as_json: bool) -> None:
    """What a change would gain: `rltrace whatif --lever placement=one-step-off`."""
    from rltrace.analysis.whatif import levers, predict
    from rltrace.report import to_json, whatif_section

    if stages is not None and run is not None:
        raise RltraceError("give a run or --stages, not both", WRONG_USAGE)
    pairs = levers.moves(moves)
    source = _whatif_source(run, stages)
    base = predict.baseline(source)
    found = [predict.predict(source, pairs)] if pairs else list(predict.ranked(source))
    if as_json:
        _print_json({"before": to_json.plain(base), "predictions": to_json.plain(found)})
        return
    from rich.console import Console

    from rltrace.report import terminal

    section = whatif_section.one(base, found[0]) if pairs else whatif_section.ranked(base, found)
    terminal.show(section, Console())


def _whatif_source(run: Path | None, stages: Path | None) -> Any:
    if stages is not None:
        from rltrace.analysis.whatif.stated import read_stages

        return read_stages(stages).workload
    from rltrace.analysis.whatif.of_run import workload_of
    from rltrace.run.location import find_run

    return workload_of(rltrace.open_run(find_run(run)))


@main.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@_JSON
def compare(before: Path, after: Path, as_json: bool) -> None:
    """Which stage and which factor of goodput made the difference between two runs."""
    from rltrace.analysis.compare import compare as compare_
    from rltrace.report import compare_section, to_json

    found = compare_(rltrace.open_run(before), rltrace.open_run(after))
    if as_json:
        stage, factor = found.stage, found.factor
        named = {"stage": stage and stage.name, "factor": factor and factor.name}
        _print_json({**to_json.plain(found), **named})
        return
    from rich.console import Console

    from rltrace.report import terminal

    console = Console()
    for section in compare_section.sections(found):
        terminal.show(section, console)


@main.command()
@_RUN
@click.option("--fix", "number", type=int, metavar="N", help="The verdict's Nth fix.")
@click.option(
    "--set",
    "words",
    multiple=True,
    metavar="OPTION=VALUE",
    help="A setting to change, as the framework names it. Repeatable: together.",
)
@click.option("--pairs", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--out", type=_NewFolder(path_type=Path), help="Directory to make for the runs.")
@click.option("--dry-run", is_flag=True, help="Say what would be run, and run nothing.")
@_JSON
@_reads_a_run
def experiment(
    run: Run,
    number: int | None,
    words: tuple[str, ...],
    pairs: int,
    out: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run a job again with a change and without, in turns: did it gain what was predicted?

    Without --fix and --set it tries the verdict's first fix that has a setting. Exits with 0 where
    the gain is as predicted (or, without a prediction, there is one), 1 where it is not, 3 where
    nobody can tell.
    """
    from rltrace.report import experiment_section, to_json
    from rltrace.run import experiment as experiment_

    if number is not None and words:
        raise RltraceError("give --fix or --set, not both", WRONG_USAGE)
    if words:
        change = experiment_.change_of_words(words)
    else:
        from rltrace.analysis.summary import summarize

        change = experiment_.change_of_fix(summarize(run).verdict.fixes, number)
    plan = experiment_.plan(run, change, pairs, out)
    for line in (*plan.sentences(), *experiment_section.expected(change.predicted, change.metric)):
        click.echo(line, err=True)
    if dry_run:
        if as_json:
            _print_json({**to_json.plain(plan), "folder": str(plan.folder), "runs": plan.runs()})
        return
    found = experiment_.carry_out(plan, lambda line: click.echo(line, err=True))
    if as_json:
        _print_json({"change": change.name, **to_json.plain(found)})
    else:
        from rich.console import Console

        from rltrace.report import terminal

        terminal.show(experiment_section.section(change.name, found), Console())
    sys.exit(experiment_section.EXIT_CODES[found.answer])


@main.command("ls")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@_JSON
def list_runs(folder: Path | None, as_json: bool) -> None:
    """The runs here, or in FOLDER, oldest first."""
    from rltrace.report import listing
    from rltrace.run.location import list_runs as list_runs_

    entries = listing.entries(list_runs_(folder))
    if as_json:
        _print_json(listing.to_json(entries))
    else:
        from rich.console import Console

        listing.render(entries, Console())


@main.command()
@_RUN
@click.option("--delete-segments", is_flag=True, help="Delete the Arrow files afterwards.")
@_JSON
@_reads_a_run
def compact(run: Run, delete_segments: bool, as_json: bool) -> None:
    """Turn a run into Parquet, for keeping: about a fifth of the size, and faster to read."""
    from dataclasses import asdict

    from rich import filesize

    from rltrace.trace import parquet

    def progress(table: str) -> None:
        if not as_json and sys.stderr.isatty():
            click.echo(f"  {table}", err=True)

    done = parquet.compact(run, progress)
    if delete_segments:
        parquet.delete_segments(run.path)
    if as_json:
        _print_json({"path": str(run.path), **asdict(done)})
    else:
        before, after = sum(done.segment_bytes.values()), sum(done.parquet_bytes.values())
        rows = sum(done.rows.values())
        sizes = f"{filesize.decimal(before)} of segments -> {filesize.decimal(after)}"
        kept = "" if delete_segments else "; the segments are kept (--delete-segments)"
        click.echo(f"{run.path}: {rows:,} rows, {sizes}{kept}")


@main.command()
@_RUN
@_JSON
def doctor(run: Path | None, as_json: bool) -> None:
    """What rltrace can see here: frameworks, hooks, GPUs, disk; and what is wrong with RUN."""
    from rltrace.run import doctor as doctor_

    findings = doctor_.examine(run)
    if as_json:
        _print_json(doctor_.to_json(findings))
    else:
        from rich.console import Console

        doctor_.render(findings, Console())
    sys.exit(0 if findings.healthy else 1)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


if __name__ == "__main__":
    main()
