"""Synthetic traces with known truth: `python -m benchmarks.make_trace OUT --placement async`.

Tests and benchmarks import `make`; the command writes the run and its truth (`OUT/truth.json`).
With `--job` the run is played event by event (`benchmarks.synthetic.job`), and its truth is the
critical path; `make_job` is its function. With `--rows` it is a long run of many processes, made of
a few steps that come again and again (`make_long`): 100 million rows in minutes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import click

from benchmarks.synthetic.job import Job
from benchmarks.synthetic.job_trace import make_job
from rltrace.testing.inside.trace import TABLES
from rltrace.testing.run_files import write
from rltrace.testing.timeline import play
from rltrace.testing.truth import StepTruth, Truth, make
from rltrace.testing.workload import PLACEMENTS, Workload

__all__ = ["Job", "StepTruth", "Truth", "Workload", "make", "make_job", "make_long"]

_PLAYED_STEPS = 10  # of a long run; they come again until it is long enough
_INNER_SPANS = 8  # of each generation


def make_long(path: Path, rows: int, processes: int = 2_000) -> int:
    """Write a run of about so many rows, of all tables, by so many processes on a node for each
    eight, into the new directory `path`; returns how many steps it has.

    Errors: FileExistsError when `path` holds a run already.
    """
    nodes = max(1, processes // 8)
    rollout = max(2, processes * 7 // 10)
    reward = max(1, processes // 20)
    load = Workload(
        placement="async",
        nodes=nodes,
        gpus=8 * nodes,
        rollout_workers=rollout,
        reward_workers=reward,
        learners=max(1, processes - 1 - nodes - rollout - reward),
        steps=_PLAYED_STEPS,
        warmup_steps=0,
        prompts=-(-rollout // 8),
        repeats=2,
    )
    timeline = play(load)
    spans = sum(len(p.spans) + _INNER_SPANS * len(p.inner) for p in timeline.processes)
    others = sum(
        len(part[TABLES[table].columns[0].name])
        for process in timeline.processes
        for table, parts in process.columns.items()
        for part in parts
    )
    repeats = max(2, round(rows / (spans + others)))
    write(path, replace(load, spans=spans, repeats=repeats), timeline)
    return load.steps * repeats


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--placement", type=click.Choice(PLACEMENTS), default="colocated", show_default=True)
@click.option("--spans", default=0, help="Total number of spans, e.g. 10_000_000.", type=int)
@click.option("--set", "pairs", multiple=True, metavar="KNOB=VALUE", help="Any field of Workload.")
@click.option("--rows", default=0, help="A long run of about so many rows.", type=int)
@click.option("--processes", default=2_000, show_default=True, help="Of a long run.")
@click.option("--job", is_flag=True, help="Play a job whose critical path is known; knobs of Job.")
def main(
    out: Path,
    placement: str,
    spans: int,
    pairs: tuple[str, ...],
    rows: int,
    processes: int,
    job: bool,
) -> None:
    """Write a synthetic run into OUT."""
    if rows:
        steps = make_long(out, rows, processes)
        click.echo(f"{steps:,} steps of {processes:,} processes in {out}")
        return
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
