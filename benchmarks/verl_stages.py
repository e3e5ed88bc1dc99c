"""How true a trace of verl is, and what it costs: real runs without a GPU, traced and not in turn.

    .venvs/verl-*/bin/python -m benchmarks.verl_stages [--runs 3] [--steps 12] [--json]

Takes about three minutes a pair of runs, with the interpreter that `make test-verl` has made.

Stage seconds are held against stamps that the job's own code takes: its rollout server around each
answer, its reward function around each verdict, its rollout worker around each update of weights.
The figure of a step is how far the two are apart, as a part of what is allowed: 5 % of the stamps,
or 5 ms where that is more. Answers and verdicts take some time here, as they do in real runs: a
request's way to its server and back (milliseconds on this path) is part of the rollout that is
traced and not of the one that is stamped. verl's own timers are held against the trace likewise.

Traced and untraced runs draw the same tokens, so that equal steps are pairs, by verl's own clock.
verl asks every 2 s whether a batch is complete, which both have to wait for: the ratio of whole
steps says what a user notices, the ratio without that timer what tracing costs the rest.
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
from tests.verl.jobs import JOBS, Finished, make_assets, train

STAMPED = {"generate": Stage.ROLLOUT, "reward": Stage.REWARD, "weights": Stage.SYNC}
TIMERS = ("gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights", "step")
SLOWER = (("VERL_CPU_TOKEN_SECONDS", "0.02"), ("VERL_CPU_REWARD_SECONDS", "0.02"))
TRACED, UNTRACED = "traced", "untraced"


def timer_errors(job: Finished) -> Iterator[Error]:
    """verl's timers of every steady step, as its own metrics have them."""
    for step, metrics in list(job.metrics.items())[1:]:
        for name in TIMERS:
            [traced_s] = job.rows(
                "SELECT sum(end_ns - start_ns) / 1e9 FROM spans"
                f" WHERE name = '{name}' AND role = 'controller' AND step = {step}"
            )
            yield "verl's timers", part_of_allowed(float(traced_s), metrics[f"timing_s/{name}"])


def step_seconds(job: Finished, without_gen: bool) -> list[float]:
    """verl's own step times after the first, with or without the wait for the batch."""
    return [
        metrics["timing_s/step"] - (metrics["timing_s/gen"] if without_gen else 0.0)
        for metrics in list(job.metrics.values())[1:]
    ]


def run_all(folder: Path, runs: int, steps: int) -> tuple[list[Finished], list[Finished]]:
    """Traced and untraced runs, in turn."""
    assets = make_assets(folder / "sums")
    job = replace(JOBS["sync"], steps=steps, environment=JOBS["sync"].environment + SLOWER)

    def run(kind: str, nth: int) -> Finished:
        return train(job, assets, folder / f"{nth}-{kind}", kind == TRACED)

    done = in_turn((TRACED, UNTRACED), runs, run)
    return done[TRACED], done[UNTRACED]


@click.command()
@click.option("--runs", default=3, show_default=True, help="Pairs of runs.")
@click.option("--steps", default=12, show_default=True, help="Steps a run; the first is left out.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(runs: int, steps: int, as_json: bool) -> None:
    """Truth and cost of traces of verl; exits 1 when a limit is missed."""
    result = Result("Error of a step, as a part of what is allowed (5 % or 5 ms)", "1")
    with tempfile.TemporaryDirectory() as name:
        traced, untraced = run_all(Path(name), runs, steps)
        errors(result, stage_errors(traced, STAMPED))
        errors(result, (error for job in traced for error in timer_errors(job)))
        for what, without_gen in (("step", False), ("step without its wait for rollout", True)):
            ours, theirs = (
                [step_seconds(job, without_gen) for job in jobs] for jobs in (traced, untraced)
            )
            cost_of_steps(result, what, ours, theirs, limited=not without_gen)
        cost_of_events(result, traced, steps)
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
