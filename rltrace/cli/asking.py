"""Commands that ask what would be, and what made the difference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rltrace.cli import options
from rltrace.cli.manual import command
from rltrace.cli.output import working
from rltrace.trace.errors import CANNOT_TELL, OK, RltraceError, WrongUsage

if TYPE_CHECKING:
    from rltrace.analysis.alarms.alarm import Alarm
    from rltrace.analysis.walls.wall import Wall


@command(short_help="What a change would gain, as a range.")
@options.RUN
@click.option("--stages", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--lever", "moves", multiple=True, metavar="NAME=VALUE")
@options.STEPS
@options.LAST
@options.JSON
def whatif(
    run: Path | None,
    stages: Path | None,
    moves: tuple[str, ...],
    steps: str | None,
    last: int | None,
    as_json: bool,
) -> None:
    """What a change would gain: `rltrace whatif --lever placement=one-step-off`.

    If the run crashed or has another alarm, there is no list of gains (exit 3). Ask for one change
    with --lever: its gain stands below the alarm.
    """
    from rltrace.analysis.fixes import fixes
    from rltrace.analysis.whatif import levers, predict
    from rltrace.analysis.whatif.workload import Constants
    from rltrace.report.formats import to_json
    from rltrace.report.sections import whatif_section

    if stages is not None and run is not None:
        raise WrongUsage("give a run or --stages, not both")
    if stages is not None and (steps is not None or last is not None):
        raise WrongUsage("--stages has no steps to choose from")
    pairs = levers.moves(moves)
    with working("replaying the job"):
        found_wrong, walls, source = _whatif_source(run, stages, steps, last)
    alarms = [alarm.says for alarm in found_wrong if alarm.forbids]
    beside = [alarm.says for alarm in found_wrong if alarm.judged_anyway and alarm.kind == "stall"]
    if alarms and not pairs and not as_json:
        raise RltraceError(whatif_section.alarmed(alarms), CANNOT_TELL)
    base = predict.baseline(source)
    tools_hold = source(Constants()).engine.tools_hold
    found = [fixes.held(predict.predict(source, pairs), walls, tools_hold)] if pairs else []
    untold: dict[str, str] = {}
    if not pairs and not alarms:
        with working("replaying the job with each change"):
            found, untold = fixes.ranked(source, walls, tools_hold)
    if pairs:
        section = whatif_section.one(base, found[0], alarms, beside)
    else:
        section = whatif_section.ranked(base, found, untold, beside)
    document = {
        "alarms": alarms,
        "warnings": beside,
        "before": to_json.plain(base),
        "predictions": to_json.plain(found),
        "cannot_tell": untold,
    }
    options.answer(as_json, document, [section])
    sys.exit(CANNOT_TELL if alarms and not pairs else OK)


def _whatif_source(
    run: Path | None, stages: Path | None, which: str | None, last: int | None
) -> tuple[tuple[Alarm, ...], tuple[Wall, ...], Any]:
    """The alarms of the run that is asked about, its walls, and its workload."""
    if stages is not None:
        from rltrace.analysis.whatif.stated import read_stages

        return (), (), read_stages(stages).workload
    from rltrace.analysis.run_analysis import RunAnalysis
    from rltrace.analysis.walls.rank import rank
    from rltrace.analysis.walls.wall import too_few
    from rltrace.analysis.whatif.of_run import workload_of
    from rltrace.run.location import find_run
    from rltrace.run.reading import open_readable

    opened = open_readable(find_run(run))
    options.narrow_to(opened, which, last)
    analysis = RunAnalysis(opened)
    source = analysis.source or workload_of(analysis)  # which says why there is none
    if few := too_few(len(analysis.steady)):
        raise RltraceError(f"cannot be predicted: {few}", CANNOT_TELL)
    return analysis.health.alarms, rank(analysis).walls, source


@command(short_help="Which stage made the difference between two runs.")
@click.argument("before", type=options.RUN_FOLDER)
@click.argument("after", type=options.RUN_FOLDER)
@options.JSON
def compare(before: Path, after: Path, as_json: bool) -> None:
    """Which stage and which factor of goodput made the difference between two runs."""
    from rltrace.analysis.compare import compare as compare_
    from rltrace.report.formats import to_json
    from rltrace.report.sections import compare_section
    from rltrace.run.reading import open_readable

    with working("comparing the runs"):
        found = compare_(open_readable(before), open_readable(after))
    stage, factor = found.stage, found.factor
    named = {"stage": stage and stage.name, "factor": factor and factor.name}
    document = {**to_json.plain(found), **named}
    options.answer(as_json, document, compare_section.sections(found, (str(before), str(after))))
