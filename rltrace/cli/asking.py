"""Commands that ask what would be, and what made the difference."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rltrace.cli import options
from rltrace.cli.manual import command, pages
from rltrace.cli.output import working
from rltrace.trace.errors import CANNOT_TELL, OK, RltraceError, WrongUsage

if TYPE_CHECKING:
    from rltrace.analysis.alarms.alarm import Alarm
    from rltrace.analysis.timeline.analysed_part import StepSelection
    from rltrace.analysis.walls.wall import Wall


@command(short_help="What a change would gain, as a range.")
@options.RUN
@click.option("--stages", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--lever", "moves", multiple=True, metavar="NAME=VALUE")
@options.JSON
@options.asks_of_a_part
def whatif(
    run: Path | None,
    stages: Path | None,
    moves: tuple[str, ...],
    part: StepSelection | None,
    as_json: bool,
) -> None:
    """What a change would gain: `rltrace whatif --lever placement=one-step-off`.

    If the run crashed or has another alarm, there is no list of gains (exit 3). Ask for one change
    with --lever: its gain stands below the alarm.
    """
    from rltrace.analysis.fixes import fixes
    from rltrace.analysis.plan.placement_breakdown import costed
    from rltrace.analysis.whatif import levers, predict
    from rltrace.analysis.whatif.workload import Constants
    from rltrace.report.formats import to_json
    from rltrace.report.sections import whatif_section

    if stages is not None and run is not None:
        raise WrongUsage("give a run or --stages, not both")
    if stages is not None and part is not None:
        raise WrongUsage("--stages has no steps to choose from")
    pairs = levers.moves(moves)
    with working("replaying the job"):
        found_wrong, source, walls, longest = _whatif_source(run, stages, part)
    alarms = [alarm.says for alarm in found_wrong if alarm.forbids]
    beside = [alarm.says for alarm in found_wrong if alarm.judged_anyway and alarm.kind == "stall"]
    if alarms and not pairs and not as_json:
        raise RltraceError(whatif_section.alarmed(alarms), CANNOT_TELL)
    base, stated = predict.baseline(source), costed(source(Constants())) if stages else ()
    held_by = fixes.Bounds(walls, longest, source(Constants()).engine.tools_hold)
    found = [fixes.held(predict.predict(source, pairs), held_by)] if pairs else []
    untold: dict[str, str] = {}
    if not pairs and not alarms:
        with working("replaying the job with each change"):
            found, untold = fixes.ranked(source, held_by)
    if pairs:
        section = whatif_section.one(base, found[0], alarms, beside)
    else:
        section = whatif_section.ranked(base, found, untold, beside, stated)
    document = {
        "alarms": alarms,
        "warnings": beside,
        "before": to_json.plain(base),
        "predictions": to_json.plain(found),
        "cannot_tell": untold,
        "walls": to_json.plain(stated or walls),
    }
    options.answer(as_json, document, [section])
    sys.exit(CANNOT_TELL if alarms and not pairs else OK)


def _whatif_source(
    run: Path | None, stages: Path | None, part: StepSelection | None
) -> tuple[tuple[Alarm, ...], Any, tuple[Wall, ...], float]:
    """The alarms of the run that is asked about, its workload, its walls and its longest chain."""
    if stages is not None:
        from rltrace.analysis.whatif.stated_workload import read_stages

        return (), read_stages(stages).workload, (), 0.0
    from rltrace.analysis.run_analysis import RunAnalysis
    from rltrace.analysis.timeline.analysed_part import narrow
    from rltrace.analysis.walls.rank import rank
    from rltrace.analysis.walls.wall import too_few
    from rltrace.analysis.whatif.workload_of_run import workload_of
    from rltrace.run.run_folders import find_run, open_readable

    opened = open_readable(find_run(run))
    narrow(opened, part)
    analysis = RunAnalysis(opened)
    source = analysis.source or workload_of(analysis)  # which says why there is none
    if few := too_few(len(analysis.steady)):
        raise RltraceError(f"cannot be predicted: {few}", CANNOT_TELL)
    return analysis.health.alarms, source, rank(analysis).walls, analysis.longest_chain


@command(short_help="Which stage made the difference between two runs.")
@click.argument("before", type=options.RUN_FOLDER)
@click.argument("after", type=options.RUN_FOLDER)
@options.PHASE
@options.JSON
def compare(before: Path, after: Path, phase: int | None, as_json: bool) -> None:
    """Which stage and which factor of goodput made the difference between two runs."""
    from rltrace.analysis.compare import compare as compare_
    from rltrace.report.formats import to_json
    from rltrace.report.sections import compare_section
    from rltrace.run.run_folders import open_phase

    with working("comparing the runs"):
        found = compare_(open_phase(before, phase), open_phase(after, phase))
    stage, factor = found.stage, found.factor
    named = {"stage": stage and stage.name, "factor": factor and factor.name}
    document = {**to_json.plain(found), **named}
    options.answer(as_json, document, compare_section.sections(found, (str(before), str(after))))


def _read(kind: str, context: click.Context, option: click.Parameter, value: str | None) -> Any:
    from rltrace.analysis.plan.data_sheets import parameters

    if value == "":
        raise WrongUsage(f"{option.opts[0]} is empty")
    if value is None or kind == "text":
        return value
    return options.seconds(value, option.opts[0]) if kind == "time" else parameters(value)


_KINDS: dict[str, dict[str, Any]] = {
    "flag": {"default": None}, "count": {"type": int}, "number": {"type": float},
    **{kind: {"callback": partial(_read, kind)} for kind in ("text", "time", "size")},
}  # fmt: skip


def _figures(page: str) -> Callable[[Any], Any]:
    """Options that stand for figures of a file, by table and key there (manual.toml, `figures`)."""

    def given(asked: Any) -> Any:
        for option, (to, kind, like) in reversed(pages()[page]["figures"].items()):
            name = to.replace(".", "__")
            asked = click.option(option, name, metavar=like or None, **_KINDS[kind])(asked)
        return asked

    return given


@command(short_help="A design for a workload, before any GPU is rented.")
@click.argument("workload", required=False, type=click.Path(path_type=Path))
@_figures("plan")
@click.option("--from-run", type=options.RUN_FOLDER, metavar="RUN")
@click.option("--sweep", metavar="gpus=16..256")
@options.FULL
@options.JSON
def plan(
    workload: Path | None,
    from_run: Path | None,
    sweep: str | None,
    full: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """A design for a workload, before any GPU is rented: the placement, its step and tokens per
    dollar, the wall, what fits; with --full the arithmetic and settings to launch it."""
    from rltrace.analysis.plan import plan as planner
    from rltrace.analysis.plan import workload_input as given
    from rltrace.analysis.plan.frameworks import advise
    from rltrace.report.formats import to_json
    from rltrace.report.sections import plan_section

    tables = given.read_workload(workload) if workload is not None else {}
    tables = given.merged(tables, _tables(flags))
    measured = None
    if from_run is not None:
        from rltrace.analysis.run_analysis import RunAnalysis
        from rltrace.run.run_folders import find_run, open_phase

        with working("analysing the run"):
            measured = given.measure(RunAnalysis(open_phase(find_run(from_run))))
        tables = given.merged(measured.tables, tables)

    def made(tables: dict[str, dict[str, Any]]) -> Any:
        spec = given.spec_of(tables, str(workload or ""))
        return spec if measured is None else given.calibrated(spec, measured)

    if sweep is not None:
        what, values = planner.asked(sweep, tables)
        with working(f"planning {len(values)} values of {what}"):
            points = planner.sweep(tables, what, values, made)
        document = {"swept": what, "points": to_json.plain(points)}
        options.answer(as_json, document, [plan_section.swept(points, what)])
        return
    found = planner.plan(made(tables))
    advice = advise(found)
    options.answer(
        as_json, to_json.of_plan(found, advice), plan_section.sections(found, advice, full)
    )


def _tables(flags: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Flags as the tables of a workload file: each is named by its table and key there."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in flags.items():
        table, _, key = name.partition("__")
        if value is not None:
            found.setdefault(table, {})[key] = value
    if "name" in found.get("model", {}) and "parameters" in found["model"]:
        raise WrongUsage("give --model or --params, not both")
    return found


@command(short_help="The wall and the first fix, from rough stage seconds.")
@_figures("triage")
@options.JSON
def triage(as_json: bool, **flags: Any) -> None:
    """The wall and the first fix, from rough seconds of a step's stages."""
    from rltrace.analysis.plan.triage import triage as triage_
    from rltrace.report.formats import to_json
    from rltrace.report.sections import plan_section

    tables: dict[str, Any] = _tables(flags)
    tables |= tables.pop("", {})
    if not {"rollout", "train"} & {name for name, s in tables.get("stages", {}).items() if s}:
        raise WrongUsage("give at least --rollout or --train, in seconds")
    found = triage_(tables)
    document = {**to_json.plain(found), "binding": found.binding}
    options.answer(as_json, document, [plan_section.triaged(found)])
