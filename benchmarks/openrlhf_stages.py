"""How true a trace of OpenRLHF is, and what it costs: real runs without a GPU, in turn.

    .venvs/openrlhf-*/bin/python -m benchmarks.openrlhf_stages [--runs 3] [--steps 12] [--json]

Takes about four minutes a round of three runs, with the interpreter that `make test-openrlhf` has
made: traced with slow verdicts, the same untraced, and traced with quick ones.

Verdicts: the trace's busy seconds against the delays that the reward function slept, and what the
report says they cost (they run beside generation) against what a step saves without them, within
that saving's noise.
OpenRLHF's own timers are held against the trace where they say what their name does. The cost is
OpenRLHF's own step time, traced over untraced, and events x their cost in the busiest process.
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
from rltrace.analysis.summary import summarize
from rltrace.analysis.walls.wall import ENV_REWARD
from tests.openrlhf.jobs import JOBS, Finished, make_assets, train

DELAY_S = 0.3
TIMERS = {
    "timing/make_experience": "name LIKE '%.make_experience_batch'",
    "timing/ppo_train": "name LIKE '%PPOTrainer.ppo_train' AND stage = 'wait'",
    "timing/broadcast": "stage = 'sync'",  # without the asynchronous trainer's lock they are one
}
"""OpenRLHF's timer -> the controller's span of the same."""

SHARE, LEAST_S = 0.05, 0.005


def steady_s(job: Finished) -> list[float]:
    """Seconds of the traced steps after the first."""
    return [step.seconds for step in summarize(job.run).steps.times[1:]]


def verdicts_cost_s(job: Finished) -> float:
    """What the report says verdicts cost a step, in seconds."""
    found = summarize(job.run)
    (wall,) = [wall for wall in found.verdict.walls if wall.name == ENV_REWARD]
    return wall.cost.share * found.steps.step_s.mean


def busy_error(job: Finished) -> float:
    """How far the trace's busy seconds of verdicts are from what the reward function slept, by its
    own stamps, as a part of 5 %. On a busy machine it sleeps longer than it asked for."""
    [busy_s] = job.rows("SELECT sum(end_ns - start_ns) / 1e9 FROM rewards")
    stamps = job.stamps("reward")
    slept_s = sum(stamp["end_ns"] - stamp["start_ns"] for stamp in stamps) / 1e9
    assert slept_s >= DELAY_S * len(stamps)
    return abs(float(busy_s) - slept_s) / (SHARE * slept_s)


def timer_errors(job: Finished) -> Iterator[float]:
    """OpenRLHF's timers of every steady step against the trace, as a part of 5 % or 5 ms."""
    for step, metrics in list(job.metrics.items())[1:]:
        for timer, spans in TIMERS.items():
            [traced_s] = job.rows(
                "SELECT sum(end_ns - start_ns) / 1e9 FROM spans"
                f" WHERE role = 'controller' AND step = {step} AND {spans}"
            )
            true_s = metrics[timer]
            yield abs(float(traced_s) - true_s) / max(SHARE * true_s, LEAST_S)


def logged_s(job: Finished) -> list[float]:
    """OpenRLHF's own seconds of the steps after the first."""
    return [metrics["timing/step_total"] for metrics in list(job.metrics.values())[1:]]


def run_all(folder: Path, runs: int, steps: int) -> dict[str, list[Finished]]:
    """Runs of each kind, in an order that reverses every round."""
    assets = make_assets(folder / "sums")
    quick = replace(JOBS["sync"], steps=steps)
    slow = replace(quick, environment=(("REWARD_DELAY_S", str(DELAY_S)),))
    kinds = {"slow": (slow, True), "untraced": (slow, False), "quick": (quick, True)}
    done: dict[str, list[Finished]] = {kind: [] for kind in kinds}
    for nth in range(runs):
        for kind in list(kinds)[:: -1 if nth % 2 else 1]:
            job, traced = kinds[kind]
            done[kind].append(train(job, assets, folder / f"{nth}-{kind}", traced))
    return done


def verdicts(result: Result, done: dict[str, list[Finished]]) -> None:
    """Busy and exposed seconds of verdicts."""
    result.rows["busy verdicts / delays"] = spread([busy_error(job) for job in done["slow"]])
    saved = np.array(
        [
            slow - quick
            for one, other in zip(done["slow"], done["quick"], strict=True)
            for slow, quick in zip(steady_s(one), steady_s(other), strict=True)
        ]
    )
    low, high = interval(saved, level=0.95, statistic=middle_means)
    slow, quick = (
        float(np.mean([verdicts_cost_s(job) for job in done[kind]])) for kind in ("slow", "quick")
    )
    saving, shown = float(middle_means(saved)), slow - quick
    result.notes["a step saves without the delays"] = (
        f"{saving:.4f} s (95 % {low:.4f} to {high:.4f}, {len(saved)} steps)"
    )
    result.notes["verdicts cost, as reported"] = f"{shown:.4f} s"
    off = abs(shown - saving) / ((high - low) / 2)
    what = "cost of verdicts off what is saved without, as a part of its noise"
    result.checks.append(Check(what, off, 1.0, ""))


def cost(result: Result, done: dict[str, list[Finished]], steps: int) -> None:
    """What tracing costs."""
    ratios = np.array(
        [
            ours / theirs
            for one, other in zip(done["slow"], done["untraced"], strict=True)
            for ours, theirs in zip(logged_s(one), logged_s(other), strict=True)
        ]
    )
    low, high = interval(ratios, level=0.9, statistic=middle_means)
    result.notes["step, traced / untraced"] = (
        f"{float(middle_means(ratios)):.4f} (mean of the middle 60 % of {len(ratios)} pairs),"
        f" 90 % {low:.4f} to {high:.4f}"
    )
    bound = "step time traced / untraced, upper 95 % bound"
    result.checks.append(Check(bound, high, 1.03, ""))
    for job in done["slow"]:
        events, costs = costs_s(job.run)
        [wall_s] = job.rows("SELECT (max(end_ns) - min(start_ns)) / 1e9 FROM steps")
        result.notes["events a step"] = (
            f"{events / steps:,.0f}, {sum(costs) / events * 1e9:,.0f} ns each in the mean"
        )
        share = costs[0] / float(wall_s)
        result.checks.append(Check("events x cost / wall time, busiest process", share, 0.003, ""))


@click.command()
@click.option("--runs", default=3, show_default=True, help="Rounds of three runs.")
@click.option("--steps", default=12, show_default=True, help="Steps a run; the first is left out.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(runs: int, steps: int, as_json: bool) -> None:
    """Truth and cost of traces of OpenRLHF; exits 1 when a limit is missed."""
    result = Result("Error, as a part of what is allowed (5 % or 5 ms)", "1")
    with tempfile.TemporaryDirectory() as name:
        done = run_all(Path(name), runs, steps)
        verdicts(result, done)
        traced = [*done["slow"], *done["quick"]]
        result.rows["OpenRLHF's timers"] = spread([e for job in traced for e in timer_errors(job)])
        for what, row in result.rows.items():
            result.checks.append(Check(f"{what}, median", row.median, 1.0, ""))
        cost(result, done, steps)
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
