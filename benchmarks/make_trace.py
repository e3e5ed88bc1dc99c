"""Synthetic traces with known truth: `python -m benchmarks.make_trace OUT --placement async`.

Tests and benchmarks import `make`; the command writes the run and its truth (`OUT/truth.json`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import click

from benchmarks.synthetic.files import write
from benchmarks.synthetic.timeline import play
from benchmarks.synthetic.truth import StepTruth, Truth, tell
from benchmarks.synthetic.workload import PLACEMENTS, Workload

__all__ = ["StepTruth", "Truth", "Workload", "make"]


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
def main(out: Path, placement: str, spans: int, pairs: tuple[str, ...]) -> None:
    """Write a synthetic run into OUT."""
    kinds = {f.name: f.default for f in fields(Workload)}
    knobs: dict[str, object] = {"placement": placement, "spans": spans}
    for pair in pairs:
        knob, _, value = pair.partition("=")
        if knob not in kinds:
            raise click.BadParameter(f"{knob} is no field of Workload: {', '.join(kinds)}")
        knobs[knob] = value if isinstance(kinds[knob], str) else json.loads(value)
    truth = make(out, replace(Workload(), **knobs))  # type: ignore[arg-type]
    click.echo(f"{truth.spans:,} spans in {out}, truth in {out / 'truth.json'}")


if __name__ == "__main__":
    main()
