"""How true a trace of TRL is, and what it costs: real runs without a GPU, traced and not in turn.

    .venvs/trl-*/bin/python -m benchmarks.trl_stages [--runs 3] [--steps 12] [--json]

Takes about two minutes a pair of runs on idle cores, with the interpreter that `make test-trl` has
made.

Stage seconds are held against stamps that the job's own code takes: its model around each call of
`generate` and each forward pass without gradients, its reward functions around each verdict, its
trainer and callback from the loss of a micro-batch to where the loop goes on. The figure of a step
is how far the two are apart, as a part of what is allowed: 5 % of the stamps, or 5 ms where that is
more. TRL's own `step_time` is held against the trace likewise: it is all of the micro-batches.

Traced and untraced runs draw the same tokens, so that equal steps are pairs, by TRL's own clock.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.measuring import Result
from benchmarks.stage_truth import (
    Error,
    cost_of_events,
    cost_of_steps,
    errors,
    in_turn,
    part_of_allowed,
    stage_errors,
)
from rltrace.testing.inside.trace import Stage
from tests.trl.jobs import JOBS, Finished, Job, make_assets, train

STAMPED = {
    "generate": Stage.ROLLOUT,
    "reward": Stage.REWARD,
    "reference": Stage.REFERENCE,
    "logprob": Stage.LOGPROB,
    "train": Stage.TRAIN,
}
SLOWER = (
    ("TRL_JOB_TOKEN_SECONDS", "0.02"),
    ("TRL_JOB_REWARD_SECONDS", "0.1"),
    ("TRL_JOB_PASS_SECONDS", "0.1"),
)
TRACED, UNTRACED = "traced", "untraced"
KINDS = ("rloo", "grpo")


def timer_errors(job: Finished) -> Iterator[Error]:
    """TRL's `step_time` of every steady step: the seconds of its micro-batches."""
    for step, metrics in list(job.metrics.items())[1:]:
        [traced_s] = job.rows(
            "SELECT sum(end_ns - start_ns) / 1e9 FROM spans"
            f" WHERE name = 'Trainer.training_step' AND step = {step}"
        )
        yield "TRL's step_time", part_of_allowed(float(traced_s), metrics["step_time"])


def step_seconds(job: Finished) -> list[float]:
    """TRL's own seconds of the steps after the first."""
    return [metrics["step_time"] for metrics in list(job.metrics.values())[1:]]


def run_all(folder: Path, runs: int, steps: int) -> tuple[list[Finished], list[Finished]]:
    """Traced and untraced runs of each kind, in turn."""
    model = make_assets(folder / "model")
    traced: list[Finished] = []
    untraced: list[Finished] = []
    for kind in KINDS:
        job = replace(JOBS[kind], steps=steps, environment=SLOWER)

        def run(how: str, nth: int, job: Job = job, kind: str = kind) -> Finished:
            return train(job, model, folder / f"{nth}-{kind}-{how}", how == TRACED)

        done = in_turn((TRACED, UNTRACED), runs, run)
        traced += done[TRACED]
        untraced += done[UNTRACED]
    return traced, untraced


@click.command()
@click.option("--runs", default=3, show_default=True, help="Pairs of runs of each kind.")
@click.option("--steps", default=12, show_default=True, help="Steps a run; the first is left out.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(runs: int, steps: int, as_json: bool) -> None:
    """Truth and cost of traces of TRL; exits 1 when a limit is missed."""
    result = Result("Error of a step, as a part of what is allowed (5 % or 5 ms)", "1")
    with tempfile.TemporaryDirectory() as name:
        traced, untraced = run_all(Path(name), runs, steps)
        errors(result, stage_errors(traced, STAMPED))
        errors(result, (error for job in traced for error in timer_errors(job)))
        cost_of_steps(result, "step", map(step_seconds, traced), map(step_seconds, untraced))
        cost_of_events(result, traced, steps)
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
