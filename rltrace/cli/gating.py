"""Commands that hold a run to a baseline and to limits."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from rltrace.cli.manual import command
from rltrace.cli.options import JSON, PHASE, RUN_FOLDER, answer, one_form, say
from rltrace.cli.output import discard, working

_FILE = click.Path(path_type=Path)


@command(short_help="Did goodput regress? For CI: exits with 1 where it did.")
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=RUN_FOLDER)
@click.option("--baseline", type=_FILE, metavar="FILE")
@click.option("--max-regression", multiple=True, metavar="METRIC=SHARE")
@click.option("--min", multiple=True, metavar="METRIC=LIMIT")
@click.option("--max", multiple=True, metavar="METRIC=LIMIT")
@click.option("--wall", metavar="NAME")
@PHASE
@click.option("--markdown", is_flag=True)
@JSON
@click.option("--junit", type=_FILE, metavar="FILE")
@click.option("--github", is_flag=True)
def gate(
    runs: tuple[Path, ...],
    baseline: Path | None,
    max_regression: tuple[str, ...],
    min: tuple[str, ...],
    max: tuple[str, ...],
    wall: str | None,
    phase: int | None,
    markdown: bool,
    as_json: bool,
    junit: Path | None,
    github: bool,
) -> None:
    """Did goodput regress? `rltrace gate --baseline baseline.json --max-regression goodput=3%`

    Several runs of the same code are judged together. Options that are not given are read from
    rltrace.toml or pyproject.toml.
    """
    from rltrace.analysis.gate.metrics import MAX_REGRESSION, MAXIMUM, MINIMUM, WALL
    from rltrace.report.formats import gate_outputs
    from rltrace.report.sections import gate_section
    from rltrace.run import gate_settings
    from rltrace.run.run_folders import find_run

    one_form({"--markdown": markdown, "--json": as_json})
    words = {MAX_REGRESSION: max_regression, MINIMUM: min, MAXIMUM: max}
    words[WALL] = () if wall is None else (wall,)
    project = gate_settings.read_settings(Path.cwd())
    asked = gate_settings.stated(words, baseline).over(project)
    judged = runs or [find_run(None)]
    with working("judging"):
        found = gate_settings.gate(judged, asked, phase)
    if junit is not None:
        gate_outputs.write(junit, gate_outputs.to_junit(found))
    try:
        if markdown:
            click.echo(gate_outputs.to_markdown(found))
        else:
            answer(as_json, gate_outputs.as_json(found), gate_section.sections(found))
        if github:  # which reads annotations from either stream
            for line in gate_outputs.annotation_lines(found):
                say(line, err=markdown or as_json)
            if summary := os.environ.get(gate_outputs.SUMMARY_VARIABLE):
                text = f"{gate_outputs.to_markdown(found)}\n"
                gate_outputs.write(Path(summary), text, append=True)
        sys.stdout.flush()
    except BrokenPipeError:  # `rltrace gate ... | head`: the answer is the exit code
        discard()
    sys.exit(found.exit_code)


@command(short_help="Keep what runs did, for `gate` to hold others to.")
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=RUN_FOLDER)
@click.option("-o", "--output", type=_FILE, metavar="FILE", required=True)
@click.option("--anyway", is_flag=True)
@PHASE
@JSON
def baseline(
    runs: tuple[Path, ...], output: Path, anyway: bool, phase: int | None, as_json: bool
) -> None:
    """Keep what runs did, for `rltrace gate` to hold others to: small JSON, to commit.

    Give several runs of the same job, so that the gate knows how much runs differ by chance.
    Without any, the newest here.
    """
    from rltrace.report import units
    from rltrace.run.gate_settings import keep_baseline
    from rltrace.run.run_folders import find_run

    kept = runs or [find_run(None)]
    with working("reading the runs"):
        made = keep_baseline(kept, output, anyway=anyway, phase=phase)
    steps = [run.size for run in made.runs]
    document = {"path": str(output), "runs": [run.run for run in made.runs], "steps": steps}
    size = units.size(output.stat().st_size)
    number = f"{units.plural(len(steps), 'run')}, {units.plural(sum(steps), 'step')}"
    said = f"{output}: {number}, {size}; next: rltrace gate RUN --baseline {output}"
    answer(as_json, document, said)
