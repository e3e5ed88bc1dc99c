"""Synthetic traces with known truth: `python -m benchmarks.make_trace OUT --placement async`.

Tests and benchmarks import `make`; the command writes the run and its truth (`OUT/truth.json`).
With `--job` the run is played event by event (`benchmarks.synthetic.job`), and its truth is the
critical path; `make_job` is its function.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import click

from benchmarks.synthetic.files import write
from benchmarks.synthetic.job import Job
from benchmarks.synthetic.job_trace import make_job
from benchmarks.synthetic.timeline import play
from benchmarks.synthetic.truth import StepTruth, Truth, tell
from benchmarks.synthetic.workload import PLACEMENTS, Workload

__all__ = ["Job", "StepTruth", "Truth", "Workload", "make", "make_job"]


def make(path: Path, load: Workload) -> Truth:
    """Write the run of `load` into the new directory `path`; returns (and stores) its truth.

    Errors: FileExistsError when `path` holds a run already.
    """
    timeline = play(load)
    truth = tell(load, timeline, write(path, load, timeline))
    (path / "truth.json").write_text(json.dumps(asdict(truth), indent=1))
    return truth


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--placement", type=click.Choice(PLACEMENTS), default="colocated", show_default=True)
@click.option("--spans", default=0, help="Total number of spans, e.g. 10_000_000.", type=int)
@click.option("--set", "pairs", multiple=True, metavar="KNOB=VALUE", help="Any field of Workload.")
@click.option("--job", is_flag=True, help="Play a job whose critical path is known; knobs of Job.")
def main(out: Path, placement: str, spans: int, pairs: tuple[str, ...], job: bool) -> None:
    """Write a synthetic run into OUT."""
    if job:
        path = make_job(out, replace(Job(), placement=placement, **_knobs(Job, pairs)), spans)
        (out / "truth.json").write_text(json.dumps(asdict(path), indent=1))
        click.echo(f"a job in {out}, its critical path in {out / 'truth.json'}")
        return
    knobs = {"placement": placement, "spans": spans, **_knobs(Workload, pairs)}
    truth = make(out, replace(Workload(), **knobs))
    click.echo(f"{truth.spans:,} spans in {out}, truth in {out / 'truth.json'}")


def _knobs(of: type[Workload] | type[Job], pairs: tuple[str, ...]) -> dict[str, Any]:
    kinds = {f.name: f.default for f in fields(of)}
    knobs: dict[str, Any] = {}
    for pair in pairs:
        knob, _, value = pair.partition("=")
        if knob not in kinds:
            raise click.BadParameter(f"{knob} is no field of {of.__name__}: {', '.join(kinds)}")
        knobs[knob] = value if isinstance(kinds[knob], str) else json.loads(value)
    return knobs


if __name__ == "__main__":
    main()
