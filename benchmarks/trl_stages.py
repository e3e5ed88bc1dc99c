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
import numpy as np

from benchmarks.measuring import Check, Result, interval, middle_means, spread
from benchmarks.overhead import costs_s
from benchmarks.verl_stages import covered_s, part_of_allowed
from rltrace.analysis.activity import read_activity
from rltrace.analysis.stages import break_down
from rltrace.analysis.steps import find_steps
from rltrace.trace.vocabulary import Stage
from tests.trl.jobs import JOBS, Finished, make_assets, train

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
KINDS = ("rloo", "grpo")


def stage_errors(job: Finished) -> Iterator[tuple[str, float]]:
    """`(stage, error)` of every steady step, against the stamps."""
    activity = read_activity(job.run)
    steps = find_steps(job.run, (activity.first_ns, activity.last_ns))
    found = break_down(activity, steps)
    for place, window in list(enumerate(steps.windows))[1:]:
        for what, stage in STAMPED.items():
            inside = [
                (max(stamp["start_ns"], window.start_ns), min(stamp["end_ns"], window.end_ns))
                for stamp in job.stamps(what)
                if stamp["end_ns"] > window.start_ns and stamp["start_ns"] < window.end_ns
            ]
            traced_s = float(found.tau_s[place, stage])
            if inside or traced_s:
                yield f"{stage.name.lower()} / stamps", part_of_allowed(traced_s, covered_s(inside))


def timer_errors(job: Finished) -> Iterator[tuple[str, float]]:
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


def run_all(folder: Path, runs: int, steps: int) -> dict[bool, list[Finished]]:
    """Traced and untraced runs of each kind, in turn (A B B A)."""
    model = make_assets(folder / "model")
    done: dict[bool, list[Finished]] = {True: [], False: []}
    for nth in range(runs):
        for kind in KINDS:
            job = replace(JOBS[kind], steps=steps, environment=SLOWER)
            for traced in (True, False)[:: -1 if nth % 2 else 1]:
                done[traced].append(train(job, model, folder / f"{nth}-{kind}-{traced}", traced))
    return done


@click.command()
@click.option("--runs", default=3, show_default=True, help="Pairs of runs of each kind.")
@click.option("--steps", default=12, show_default=True, help="Steps a run; the first is left out.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(runs: int, steps: int, as_json: bool) -> None:
    """Truth and cost of traces of TRL; exits 1 when a limit is missed."""
    result = Result("Error of a step, as a part of what is allowed (5 % or 5 ms)", "1")
    with tempfile.TemporaryDirectory() as name:
        done = run_all(Path(name), runs, steps)
        errors: dict[str, list[float]] = {}
        for job in done[True]:
            for what, error in (*stage_errors(job), *timer_errors(job)):
                errors.setdefault(what, []).append(error)
        for what, found in errors.items():
            result.rows[what] = spread(found)
            result.checks.append(Check(f"{what}, median", result.rows[what].median, 1.0, ""))

        ratios = np.array(
            [
                ours / theirs
                for one, other in zip(done[True], done[False], strict=True)
                for ours, theirs in zip(step_seconds(one), step_seconds(other), strict=True)
            ]
        )
        low, high = interval(ratios, level=0.9, statistic=middle_means)
        result.notes["step, traced / untraced"] = (
            f"{float(middle_means(ratios)):.4f} (mean of the middle 60 % of {len(ratios)} pairs),"
            f" 90 % {low:.4f} to {high:.4f}"
        )
        bound = "step time traced / untraced, upper 95 % bound"
        result.checks.append(Check(bound, high, 1.03, ""))

        for job in done[True]:
            events, costs = costs_s(job.run)
            [wall_s] = job.rows("SELECT (max(end_ns) - min(start_ns)) / 1e9 FROM steps")
            result.notes["events a step"] = (
                f"{events / steps:,.0f}, {sum(costs) / events * 1e9:,.0f} ns each in the mean"
            )
            share = costs[0] / float(wall_s)
            result.checks.append(
                Check("events x cost / wall time, busiest process", share, 0.003, "")
            )
        sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
