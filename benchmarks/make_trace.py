"""Synthetic traces with known truth: `python -m benchmarks.make_trace OUT --placement async`.

Tests and benchmarks import `make`; the command writes the run and its truth (`OUT/truth.json`).
With `--job` the run is played event by event (`benchmarks.synthetic.job`), and its truth is the
critical path; `make_job` is its function. With `--rows` it is a long run of many processes, made of
a few steps that come again and again (`make_long`): 100 million rows in minutes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.synthetic.files import WEIGHTS_LANE, period_ns, write
from benchmarks.synthetic.job import Job
from benchmarks.synthetic.job_trace import make_job
from benchmarks.synthetic.timeline import play
from benchmarks.synthetic.truth import StepTruth, Truth, make
from benchmarks.synthetic.workload import PLACEMENTS, Workload
from rltrace.testing.inside.trace import TABLES, Table
from rltrace.testing.run_files import START_NS, Columns

__all__ = ["Job", "StepTruth", "Truth", "Workload", "make", "make_job", "make_long"]

_PLAYED_STEPS = 10  # of a long run; they come again until it is long enough
_INNER_SPANS = 8  # of each generation


BLOCK_ROWS = 400_000
_COUNTED = ("step", "version", "first_version", "last_version", "reference_version")
_IDS = ("trajectory", "group", "prompt")
_OTHER_ID = 0x2545F4914F6CDD1D  # odd, and not the step from one id to the next
_63 = (1 << 63) - 1


@dataclass(frozen=True)
class Repeats:
    """The rows of a run `count` times, each `period_ns` and `steps` after the one before."""

    count: int
    period_ns: int
    steps: int

    def blocks(self, table: Table, columns: Columns) -> Iterator[tuple[Columns, bool]]:
        """The rows of all repeats, about `BLOCK_ROWS` at a time, and whether these are the last."""
        marker = table.columns[0].name
        if table.name == "samples":  # they are read past the last step, where the next repeat is
            kept = columns[marker] < START_NS + self.period_ns
            columns = {name: values[kept] for name, values in columns.items()}
        at_once = max(1, BLOCK_ROWS // max(1, len(columns[marker])))
        for first in range(0, self.count, at_once):
            last = min(self.count, first + at_once)
            yield self._block(table, columns, first, last), last == self.count

    def _block(self, table: Table, columns: Columns, first: int, last: int) -> Columns:
        rows = len(columns[table.columns[0].name])
        repeat = np.repeat(np.arange(first, last, dtype=np.int64), rows)
        times = {column.name for column in table.columns if column.is_time}
        found: Columns = {}
        for name, values in columns.items():
            tiled = np.tile(values, last - first)
            if name in times:
                tiled = np.where(tiled > 0, tiled + repeat * self.period_ns, tiled)
            elif name in _COUNTED:
                tiled = np.where(tiled >= 0, tiled + repeat * self.steps, tiled)
            elif name in (*_IDS, "lane"):
                own = tiled > WEIGHTS_LANE if name == "lane" else tiled >= 0
                tiled = np.where(own, (tiled + repeat * _OTHER_ID) & _63, tiled)
            found[name] = tiled
        if "step" not in found:
            return found
        there = found["step"] < self.steps * self.count
        return {name: values[there] for name, values in found.items()}


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
    )
    timeline = play(load, again=True)
    spans = sum(len(p.spans) + _INNER_SPANS * len(p.inner) for p in timeline.processes)
    others = sum(
        len(part[TABLES[table].columns[0].name])
        for process in timeline.processes
        for table, parts in process.columns.items()
        for part in parts
    )
    count = max(2, round(rows / (spans + others)))
    repeats = Repeats(count, period_ns(timeline.steps), load.steps)
    more_ns = (count - 1) * repeats.period_ns
    write(path, replace(load, spans=spans), timeline, repeats.blocks, more_ns)
    return load.steps * count


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
