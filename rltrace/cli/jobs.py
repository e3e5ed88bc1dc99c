"""Commands that run a job, or take in one that has run."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rltrace.cli import options
from rltrace.cli.manual import Command, command, offered_frameworks
from rltrace.cli.options import JSON, NEW_FOLDER, PHASE, RUN, answer, print_json, reads_a_run, say
from rltrace.cli.output import working
from rltrace.trace.errors import WrongUsage
from rltrace.trace.safe_text import visible

if TYPE_CHECKING:
    from rltrace.hooks.probe.delays import Design
    from rltrace.trace.read.run import OpenedRun

_GIVEN = "rltrace.command"
_ALL = "all"  # the value of `--probe` where no stage is named


@command(
    context_settings={"allow_interspersed_args": False},
    short_help="Run a command with every process of it traced.",
)
@click.option("--out", type=NEW_FOLDER)
@click.option("--hook", "hooks", multiple=True, metavar="MODULE:NAME=STAGE")
@click.option("--probe", is_flag=False, flag_value=_ALL, metavar="[STAGE,...]")
@click.option("--probe-budget", metavar="SHARE")
@click.option("--probe-seed", type=int)
@click.option("--live", is_flag=True)
@click.option("--log-steps", is_flag=True)
@click.option("--sync", is_flag=True)
@click.option("--ship", metavar="URL")
@click.option("--capture-tokens", is_flag=True)
@click.option("--stuck-after", metavar="TIME")
@click.option("--on-stuck", default="report", metavar="report|kill|CMD")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def wrap(
    command: tuple[str, ...],
    out: Path | None,
    probe: str | None,
    probe_budget: str | None,
    probe_seed: int | None,
    stuck_after: str | None,
    **asked: Any,
) -> None:
    """Run COMMAND with every process of it traced: `rltrace wrap -- python train.py`."""
    from rltrace.run.run_start import WrapOptions
    from rltrace.run.wrap import wrap as wrap_

    design = None if probe is None else _design_of(probe, probe_budget, probe_seed)
    if probe is None and (probe_budget, probe_seed) != (None, None):
        raise WrongUsage("--probe-budget and --probe-seed go with --probe")
    if not command:
        raise WrongUsage("give the command to trace: `rltrace wrap -- python train.py`")
    if asked["on_stuck"] in ("", "KILL", "REPORT"):
        raise WrongUsage("--on-stuck takes report, kill or a command")
    stages = {hook for hook in asked["hooks"] if not hook.endswith("=step")}
    hooked = Counter(hook.partition("=")[0] for hook in stages)
    if twice := [target for target, n in hooked.items() if n > 1]:  # its time would count twice
        raise WrongUsage(f"--hook {twice[0]} has two stages: give one")
    after_s = None if stuck_after is None else options.seconds(stuck_after, "--stuck-after", 1.0)
    sys.exit(wrap_(list(command), out, WrapOptions(probe=design, stuck_after_s=after_s, **asked)))


def _design_of(stages: str, budget: str | None, seed: int | None) -> Design:
    """The design for stages such as `"rollout,train"`. Errors: `RltraceError`."""
    from random import SystemRandom

    from rltrace.hooks.probe.delays import DEFAULT_BUDGET, Design

    named = [stage for stage in stages.split(",") if stage and stage != _ALL]
    drawn = SystemRandom().randrange(1 << 32) if seed is None else seed
    try:
        return Design(named, DEFAULT_BUDGET if budget is None else _share(budget), drawn)
    except ValueError as error:
        raise WrongUsage(f"--probe: {error}") from None


def _share(text: str) -> float:
    number = text.strip()
    try:
        return float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        raise ValueError(f"a budget is a share such as 5% or 0.05, not {text!r}") from None


@command(short_help="Ship to a run's URL what is not there yet.")
@RUN
@click.argument("url", required=False)
@click.option("--yes", is_flag=True)
@JSON
def ship(run: Path | None, url: str | None, yes: bool, as_json: bool) -> None:
    """Ship to RUN's URL, or into the folder at URL, what is not there yet (docs/how-to/nodes.md).

    `rltrace wrap --ship` ships a run while it goes on. Use this for what is left after a network
    failure, and for a run that was never shipped: `rltrace ship RUN s3://bucket/runs`.
    """
    from dataclasses import asdict

    from rltrace.run.run_folders import find_run
    from rltrace.run.shipping.destinations import shipped_to
    from rltrace.run.shipping.final_shipping import megabytes
    from rltrace.run.shipping.ship_command import ship as ship_

    found = find_run(run)
    if url is None and not yes and (known := shipped_to(found)):  # which anybody may have written
        if not sys.stdin.isatty():
            raise WrongUsage(f"{found} says that it is shipped to {known}: give that URL, or --yes")
        click.confirm(visible(f"{found} says that it is shipped to {known}: go on?"), abort=True)
    with working("shipping") as tell:
        done = ship_(found, url, lambda sent, left: tell(f"{megabytes(left)} left"))
    amount = f"{megabytes(done.shipped_bytes)} in {done.packs} packs"
    what = f"shipped {amount}" if done.packs else "everything was there already"
    answer(as_json, asdict(done), f"{what}; next: rltrace report {shlex.quote(done.url)}")


@command("import", short_help="Make a run of a finished job's log.")
@click.argument("framework", shell_complete=offered_frameworks)
@click.argument("log", type=click.Path(path_type=Path), required=False)
@click.option("--out", type=NEW_FOLDER)
@options.explains_a_log
@JSON
def import_log(
    framework: str, log: Path | None, out: Path | None, mapping: Path | None, job: int | None,
    placement: str, as_json: bool,
) -> None:  # fmt: skip
    """Make a run of a finished job's LOG: `rltrace import [FRAMEWORK] metrics.jsonl`.

    FRAMEWORK is one of docs/reference/frameworks.md, or chrome or otlp for a trace of anything with
    --map; without it, the log tells. LOG is JSON lines, a console log (`-`: what comes in), a
    TensorBoard event file, a `run-*.wandb`, a directory of one of the last two, or a trace that the
    framework itself wrote.
    """
    from dataclasses import asdict

    from rltrace.run.importing import found_in
    from rltrace.run.importing import import_log as import_log_

    if log is None:
        framework, log = "", Path(framework)
    with working(f"reading {log.name}"):
        done = import_log_(framework, log, out, mapping, job, placement)
    if as_json:
        print_json(asdict(done))
        return
    for note in done.log_notes:
        say(note)
    say(f"{found_in(done)}; {done.spans:,} spans, {done.readings:,} readings of counters")
    say(f"the run is in {done.path}; next: rltrace report {shlex.quote(done.path)}")


class _Experiment(Command):
    """Takes a job's command behind `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        behind = args.index("--") if "--" in args else len(args)
        ctx.meta[_GIVEN] = args[behind + 1 :]
        return super().parse_args(ctx, args[:behind])


@click.command(cls=_Experiment, short_help="Run a job with a change and without: what did it gain?")
@RUN
@click.option("--fix", "number", type=int, metavar="N")
@click.option("--set", "words", multiple=True, metavar="OPTION=VALUE")
@click.option("--pairs", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--up-to", "most_pairs", type=click.IntRange(min=1), metavar="PAIRS")
@click.option("--out", type=NEW_FOLDER)
@click.option("--resume", is_flag=True)
@click.option("--dry-run", is_flag=True)
@PHASE
@JSON
@reads_a_run
def experiment(
    run: OpenedRun, number: int | None, words: tuple[str, ...], pairs: int, most_pairs: int | None,
    out: Path | None, resume: bool, dry_run: bool, phase: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Run a job again with a change and without, in turns: did it gain what was predicted?

    Without --fix and --set it tries the report's first fix that has a setting. A run from another
    machine lacks parts of its command: give the command behind `--`.
    """
    from rltrace.report.formats import to_json
    from rltrace.report.sections import compare_section
    from rltrace.run import experiment as experiment_

    if number is not None and words:
        raise WrongUsage("give --fix or --set, not both")
    if resume and out is None:
        raise WrongUsage("--resume goes on in a directory: name it with --out")
    experiment_.refuse_what_takes_no_settings(run)
    from rltrace.analysis.run_analysis import RunAnalysis
    from rltrace.analysis.timeline.analysed_part import StepSelection, narrow

    narrow(run, StepSelection(phase=phase))

    unwell: tuple[str, ...] = ()
    if words:
        change, unwell = experiment_.change_of_words(words), RunAnalysis(run).health.forbids
    else:
        from rltrace.analysis.summary import verdict

        with working("analysing the run"):
            found_by = verdict(RunAnalysis(run))
        experiment_.refuse_unwell(found_by.alarms)
        change = experiment_.change_of_fix(found_by.fixes, number)
    asked = click.get_current_context().meta[_GIVEN]
    plan = experiment_.plan(
        run, change, pairs, out, most_pairs, resume=resume, asked=asked, phase=phase
    )
    warned = (f"alarm: {alarm}" for alarm in unwell)
    expected = compare_section.expected(change.predicted, change.metric)
    for line in (*warned, *plan.sentences(), *expected):
        say(line, err=as_json or not dry_run)
    if dry_run:
        if as_json:
            print_json({**to_json.plain(plan), "folder": str(plan.folder), "runs": plan.runs()})
        return
    found = experiment_.carry_out(plan, lambda line: say(line, err=True))
    document = {"change": change.name, **to_json.plain(found)}
    answer(as_json, document, [compare_section.experiment(change.name, found)])
    sys.exit(compare_section.EXIT_CODES[found.answer])
