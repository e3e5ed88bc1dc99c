"""Oversized and odd runs, logs and settings, over all commands: `python -m benchmarks.hostile`.

    --runs 1000     so many cases, of the seeds from --first on
    --first 0

Each case is a seed (tests/fuzz/hostile_runs.py) and one command in a process of its own. Right is:
an exit code of docs/reference/api.md, a sentence where nothing can be read, at most 20 s of CPU
and 2 GB. Exits 1 where one is not.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import click

from tests.fuzz.hostile_runs import Outcome, make_good, tried


@click.command(help=__doc__)
@click.option("--runs", default=1000)
@click.option("--first", default=0)
@click.option("--seconds", default=float("inf"), help="Stop after so long.")
def main(runs: int, first: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory() as place:
        good = Path(place, "good")
        good.mkdir()
        make_good(good)
        for seed in range(first, first + runs):
            if time.monotonic() > until:
                break
            with tempfile.TemporaryDirectory(dir=place) as folder:
                found.append(one := tried(seed, good, Path(folder)))
            if one.wrong:
                print(f"{one.seed}: {one.what}; {one.command}: {one.wrong}", flush=True)
            if len(found) % 50 == 0:
                print(f"{len(found)} of {runs}", file=sys.stderr)
    wrong = [one for one in found if one.wrong]
    codes = {code: sum(one.code == code for one in found) for code in {o.code for o in found}}
    print(f"{len(found)} runs from seed {first}, {len(wrong)} wrong; exit codes {codes}")
    most_s, most_mb = max(one.cpu_s for one in found), max(one.peak_mb for one in found)
    print(f"at most {most_s:.1f} s of CPU and {most_mb:.0f} MB")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
