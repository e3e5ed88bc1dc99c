"""Updates of a real OpenRLHF job, by OpenRLHF's own calls and by rltrace.sync, in turn.

    python -m benchmarks.sync_openrlhf [--rounds 2] [--steps 8] [--json]

Takes about two minutes a round, by the Python of `make test-openrlhf`, where that was made. The job
is that of the tests: DeepSpeed, an engine of vLLM, 27 tensors, no GPU. So OpenRLHF's own way is a
call and a broadcast for each tensor, over gloo, and rltrace.sync's is a call for all of them.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.measuring import Result
from benchmarks.sync_updates import OURS, by_the_python_of, compared, held
from tests.openrlhf.jobs import JOBS, SYNC_BYTES, TENSORS, Finished, make_assets, train

OWN = "OpenRLHF's own calls"
UPDATE = "ActorPPOTrainer.broadcast_to_vllm"


def judged(done: dict[str, list[Finished]], result: Result) -> None:
    """Both ways' updates, and how often a job called its engine for one."""
    held(done, UPDATE, OWN, result)
    for way, jobs in done.items():
        calls = len(jobs[0].stamps("update")) // jobs[0].job.steps
        result.notes[way] += f" and {calls} calls to an engine"


@click.command(help=__doc__)
@click.option("--rounds", default=2, show_default=True, help="Of two runs, one each way.")
@click.option("--steps", default=8, show_default=True, help="Steps a run, each with an update.")
@click.option("--json", "as_json", is_flag=True)
def main(rounds: int, steps: int, as_json: bool) -> None:
    by_the_python_of("openrlhf", "OpenRLHF", "benchmarks.sync_openrlhf")
    # Where the Makefile has had DeepSpeed's C++ compiled.
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "extensions"))
    job = replace(JOBS["sync"], steps=steps)
    ways = {OWN: job, OURS: replace(job, sync=True)}
    result = Result(f"OpenRLHF, one host, {SYNC_BYTES:,} bytes in {TENSORS} tensors", unit="ms")
    compared(ways, rounds, make_assets, train, lambda done: judged(done, result))
    raise SystemExit(result.finish(as_json))


if __name__ == "__main__":
    main()
