"""Updates of a real verl job whose trainer is apart from its rollout, by an engine of verl's own
kind and by rltrace.sync, in turn.

    python -m benchmarks.sync_verl_job [--rounds 2] [--steps 8] [--json]

Takes about two minutes a round, by the Python of `make test-verl`, where that was made. None of
verl's checkpoint engines runs without a GPU: the one beside ours is that of the tests, which sends
verl's buckets over gloo as verl's NCCL engine does over NCCL. verl hands the tied head out twice.
"""

from __future__ import annotations

from dataclasses import replace

import click

from benchmarks.measuring import Result
from benchmarks.sync_updates import OURS, by_the_python_of, compared, held
from tests.verl.jobs import JOBS, SYNC_BYTES, by_rltrace_sync, make_assets, train

OWN = "verl's buckets over gloo"
UPDATE = "CheckpointEngineManager.update_weights"


@click.command(help=__doc__)
@click.option("--rounds", default=2, show_default=True, help="Of two runs, one each way.")
@click.option("--steps", default=8, show_default=True, help="Steps a run, each with an update.")
@click.option("--json", "as_json", is_flag=True)
def main(rounds: int, steps: int, as_json: bool) -> None:
    by_the_python_of("verl", "verl", "benchmarks.sync_verl_job")
    job = replace(JOBS["separate"], steps=steps)
    ways = {OWN: job, OURS: by_rltrace_sync(job)}
    result = Result(f"verl, one host, {SYNC_BYTES:,} bytes", unit="ms")
    compared(ways, rounds, make_assets, train, lambda done: held(done, UPDATE, OWN, result))
    raise SystemExit(result.finish(as_json))


if __name__ == "__main__":
    main()
