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
import numpy as np

from benchmarks.measuring import Check, Result, interval, middle_means, spread
from benchmarks.overhead import costs_s
from rltrace.analysis.activity import read_activity
from rltrace.analysis.stages import break_down
from rltrace.analysis.steps import find_steps
from rltrace.trace.vocabulary import Stage
from tests.verl.jobs import JOBS, Finished, make_assets, train

STAMPED = {"generate": Stage.ROLLOUT, "reward": Stage.REWARD, "weights": Stage.SYNC}
TIMERS = ("gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights", "step")
SHARE, LEAST_S = 0.05, 0.005
SLOWER = (("VERL_CPU_TOKEN_SECONDS", "0.02"), ("VERL_CPU_REWARD_SECONDS", "0.02"))


def covered_s(intervals: list[tuple[int, int]]) -> float:
    """Length of the union of intervals of nanoseconds."""
    total, reached = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total / 1e9


def part_of_allowed(traced_s: float, true_s: float) -> float:
    """How far a figure is off, as a part of what it may be; above 1 is too far."""
    return abs(traced_s - true_s) / max(SHARE * true_s, LEAST_S)


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
            yield f"{stage.name.lower()} / stamps", part_of_allowed(traced_s, covered_s(inside))


def timer_errors(job: Finished) -> Iterator[tuple[str, float]]:
    """`(timer, error)` of every steady step, against verl's own metrics."""
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
    """Traced and untraced runs, in turn (A B B A)."""
    assets = make_assets(folder / "sums")
    job = replace(JOBS["sync"], steps=steps, environment=JOBS["sync"].environment + SLOWER)
    done: dict[bool, list[Finished]] = {True: [], False: []}
    for nth in range(runs):
        for traced in (True, False)[:: -1 if nth % 2 else 1]:
            done[traced].append(train(job, assets, folder / f"{nth}-{traced}", traced))
    return done[True], done[False]


@click.command()
@click.option("--runs", default=3, show_default=True, help="Pairs of runs.")
@click.option("--steps", default=12, show_default=True, help="Steps a run; the first is left out.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(runs: int, steps: int, as_json: bool) -> None:
    """Truth and cost of traces of verl; exits 1 when a limit is missed."""
    result = Result("Error of a step, as a part of what is allowed (5 % or 5 ms)", "1")
    with tempfile.TemporaryDirectory() as name:
        traced, untraced = run_all(Path(name), runs, steps)
        errors: dict[str, list[float]] = {}
        for job in traced:
            for what, error in (*stage_errors(job), *timer_errors(job)):
                errors.setdefault(what, []).append(error)
        for what, found in errors.items():
            result.rows[what] = spread(found)
            result.checks.append(Check(f"{what}, median", result.rows[what].median, 1.0, ""))

        for what, without_gen in (("step", False), ("step without its wait for rollout", True)):
            ratios = np.array(
                [
                    ours / theirs
                    for one, other in zip(traced, untraced, strict=True)
                    for ours, theirs in zip(
                        step_seconds(one, without_gen),
                        step_seconds(other, without_gen),
                        strict=True,
                    )
                ]
            )
            low, high = interval(ratios, level=0.9, statistic=middle_means)
            result.notes[f"{what}, traced / untraced"] = (
                f"{float(middle_means(ratios)):.4f} (mean of the middle 60 % of {len(ratios)}"
                f" pairs), 90 % {low:.4f} to {high:.4f}"
            )
            if not without_gen:
                bound = f"{what} time traced / untraced, upper 95 % bound"
                result.checks.append(Check(bound, high, 1.03, ""))

        for job in traced:
            events, costs = costs_s(job.run)
            [wall_s] = job.rows("SELECT (max(end_ns) - min(start_ns)) / 1e9 FROM steps")
            result.notes["events a step"] = (
                f"{events / steps:,.0f}, {sum(costs) / events * 1e9:,.0f} ns each in the mean"
            )
            figure = costs[0] / float(wall_s)
            result.checks.append(
                Check("events x cost / wall time, busiest process", figure, 0.003, "")
            )
        sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
