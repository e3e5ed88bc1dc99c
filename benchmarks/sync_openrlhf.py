"""Updates of a real OpenRLHF job, by OpenRLHF's own calls and by rltrace.sync, in turn.

    python -m benchmarks.sync_openrlhf [--rounds 2] [--steps 8] [--json]

Takes about two minutes a round, by the Python of `make test-openrlhf`, where that was made. The job
is that of the tests: DeepSpeed, an engine of vLLM, 27 tensors, no GPU. So OpenRLHF's own way is a
call and a broadcast for each tensor, over gloo, and rltrace.sync's is a call for all of them.

An update lasts as long as `ActorPPOTrainer.broadcast_to_vllm` does, which both traces have. The
first of a run, which opens connections or takes memory, is left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np

from benchmarks.environments import ROOT, python_of
from benchmarks.measuring import Check, Result, spread
from benchmarks.stage_truth import in_turn
from tests.openrlhf.jobs import JOBS, SYNC_BYTES, TENSORS, Finished, make_assets, train

OWN, OURS = "OpenRLHF's own calls", "rltrace.sync"
TIME_LIMIT = BYTES_LIMIT = 1.0
"""Of ours, over those of OpenRLHF's own."""


def updates_ms(job: Finished) -> list[float]:
    """Milliseconds of each update after the first."""
    return job.rows(
        "SELECT (end_ns - start_ns) / 1e6 FROM spans"
        " WHERE name = 'ActorPPOTrainer.broadcast_to_vllm' ORDER BY start_ns OFFSET 1"
    )


def update_bytes(job: Finished) -> int:
    """What went to the engine in an update, by the trace; the same in each. Of its own calls the
    policy knows the size of what it sent."""
    [sent] = job.rows(
        "SELECT DISTINCT coalesce(wire_bytes, bytes) FROM syncs WHERE role = 'source'"
    )
    return int(sent)


def held(done: dict[str, list[Finished]], result: Result) -> None:
    """Both ways' updates, and ours against OpenRLHF's own."""
    times = {way: [t for job in jobs for t in updates_ms(job)] for way, jobs in done.items()}
    sizes = {way: max(map(update_bytes, jobs)) for way, jobs in done.items()}
    for way, found in times.items():
        result.rows[f"{way}: an update"] = spread(found)
        calls = len(done[way][0].stamps("update")) // done[way][0].job.steps
        result.notes[way] = f"{sizes[way]:,} bytes and {calls} calls to an engine in an update"
    ratio = float(np.median(times[OURS]) / np.median(times[OWN]))
    what = f"an update by {OURS}, over one by {OWN}"
    result.checks.append(Check(f"{what}, medians", ratio, TIME_LIMIT, "of its time"))
    result.checks.append(Check(what, sizes[OURS] / sizes[OWN], BYTES_LIMIT, "of its bytes"))


def elsewhere() -> int:
    """The same by the Python that has OpenRLHF; its exit code. 0, with a word, where there is
    none: then nothing was missed."""
    python = python_of("openrlhf")
    if python is None or python.parent.parent == Path(sys.prefix):
        print("OpenRLHF is not installed: `make test-openrlhf` installs it where this looks for it")
        return 0
    words = [str(python), "-m", "benchmarks.sync_openrlhf", *sys.argv[1:]]
    return subprocess.run(words, cwd=ROOT, check=False).returncode


@click.command(help=__doc__)
@click.option("--rounds", default=2, show_default=True, help="Of two runs, one each way.")
@click.option("--steps", default=8, show_default=True, help="Steps a run, each with an update.")
@click.option("--json", "as_json", is_flag=True)
def main(rounds: int, steps: int, as_json: bool) -> None:
    if find_spec("openrlhf") is None:
        raise SystemExit(elsewhere())
    # Where the Makefile has had DeepSpeed's C++ compiled.
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "extensions"))
    job = replace(JOBS["sync"], steps=steps)
    ways = {OWN: job, OURS: replace(job, sync=True)}
    result = Result(f"OpenRLHF, one host, {SYNC_BYTES:,} bytes in {TENSORS} tensors", unit="ms")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assets = make_assets(folder / "sums")

        def run(way: str, nth: int) -> Finished:
            print(f"{way}, {nth + 1} of {rounds}", file=sys.stderr)
            return train(ways[way], assets, folder / f"{nth}-{way == OURS}")

        held(in_turn(list(ways), rounds, run), result)
    raise SystemExit(result.finish(as_json))


if __name__ == "__main__":
    main()
