"""verl's bucketed sender, measured by the Python that has verl: the row of `sync_local` for it.

    python -m benchmarks.sync_verl [--megabytes 494] [--rounds 7]

`make test-verl` installs verl into an environment of its own. `sync_local` runs this with it, so
that both take their rounds on the same machine in the same run, each against the memory of its own
moment. Prints the row as JSON.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict

import click

from benchmarks.environments import ROOT, python_of
from benchmarks.sync_bench.measuring import BenchRow, Round, measure
from benchmarks.sync_bench.models import model_of
from benchmarks.sync_peers import VerlBuckets

MODEL = "qwen2.5-0.5b"
PATIENCE_S = 1800.0


def measured_elsewhere(row: BenchRow, megabytes: float, rounds: int) -> BenchRow:
    """The row of verl's sender, measured by that Python where `row` is missing; else, and where
    there is no such Python, `row`, which then says how to get it."""
    if not row.missing:
        return row
    if row.receivers != 1:
        row.missing = "verl pairs a sender with one receiver"
        return row
    python = python_of("verl")
    if python is None:
        row.missing += ": `make test-verl` installs it where this looks for it"
        return row
    words = [str(python), "-m", "benchmarks.sync_verl"]
    words += ["--megabytes", str(megabytes), "--rounds", str(rounds)]
    try:
        done = subprocess.run(
            words, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True
        )
    except subprocess.SubprocessError as error:  # it has said why, on stderr
        row.missing = f"{python} did not measure it: {error}"
        return row
    told = json.loads(done.stdout.splitlines()[-1])  # verl may have said something before
    return BenchRow(**{**told, "rounds": [Round(**each) for each in told["rounds"]]})


@click.command(help=__doc__)
@click.option("--megabytes", default=494.0, show_default=True)
@click.option("--rounds", default=7, show_default=True)
def main(megabytes: float, rounds: int) -> None:
    (row,) = measure(model_of(MODEL, megabytes), [VerlBuckets()], [1], rounds)
    print(json.dumps(asdict(row)))


if __name__ == "__main__":
    main()
