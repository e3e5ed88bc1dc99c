"""Commands that ask what would be, and what made the difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import rltrace
from rltrace.cli.options import JSON, RUN, console, print_json
from rltrace.trace.errors import WRONG_USAGE, RltraceError


@click.command()
@RUN
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
@JSON
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
        print_json({"before": to_json.plain(base), "predictions": to_json.plain(found)})
        return
    from rltrace.report import terminal

    section = whatif_section.one(base, found[0]) if pairs else whatif_section.ranked(base, found)
    terminal.show(section, console())


def _whatif_source(run: Path | None, stages: Path | None) -> Any:
    if stages is not None:
        from rltrace.analysis.whatif.stated import read_stages

        return read_stages(stages).workload
    from rltrace.analysis.whatif.of_run import workload_of
    from rltrace.run.location import find_run

    return workload_of(rltrace.open_run(find_run(run)))


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@JSON
def compare(before: Path, after: Path, as_json: bool) -> None:
    """Which stage and which factor of goodput made the difference between two runs."""
    from rltrace.analysis.compare import compare as compare_
    from rltrace.report import compare_section, to_json

    found = compare_(rltrace.open_run(before), rltrace.open_run(after))
    if as_json:
        stage, factor = found.stage, found.factor
        named = {"stage": stage and stage.name, "factor": factor and factor.name}
        print_json({**to_json.plain(found), **named})
        return
    from rltrace.report import terminal

    page = console()
    for section in compare_section.sections(found):
        terminal.show(section, page)
