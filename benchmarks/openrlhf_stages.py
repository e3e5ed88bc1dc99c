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

from benchmarks.measuring import Check, Result, interval, middle_means
from benchmarks.stage_truth import (
    SHARE,
    Error,
    cost_of_events,
    cost_of_steps,
    errors,
    in_turn,
    part_of_allowed,
)
from rltrace.testing.inside.analysis import ENV_REWARD, summarize
from tests.openrlhf.jobs import JOBS, Finished, make_assets, train

DELAY_S = 0.3
TIMERS = {
    "timing/make_experience": "name LIKE '%.make_experience_batch'",
    "timing/ppo_train": "name LIKE '%PPOTrainer.ppo_train' AND stage = 'wait'",
    "timing/broadcast": "stage = 'sync'",  # without the asynchronous trainer's lock they are one
}
"""OpenRLHF's timer -> the controller's span of the same."""


def steady_s(job: Finished) -> list[float]:
    """Seconds of the traced steps after the first."""
    return [step.step_s for step in summarize(job.run).steps.times[1:]]


def verdicts_cost_s(job: Finished) -> float:
    """What the report says verdicts cost a step, in seconds."""
    found = summarize(job.run)
    (wall,) = [wall for wall in found.verdict.walls if wall.name == ENV_REWARD]
    return wall.cost.share * found.steps.step_s.mean


def busy_error(job: Finished) -> Error:
    """The trace's busy seconds of verdicts against what the reward function slept, by its own
    stamps. On a busy machine it sleeps longer than it asked for."""
    [busy_s] = job.rows("SELECT sum(end_ns - start_ns) / 1e9 FROM rewards")
    stamps = job.stamps("reward")
    slept_s = sum(stamp["end_ns"] - stamp["start_ns"] for stamp in stamps) / 1e9
    assert slept_s >= DELAY_S * len(stamps)
    return "busy verdicts / delays", abs(float(busy_s) - slept_s) / (SHARE * slept_s)


def timer_errors(job: Finished) -> Iterator[Error]:
    """OpenRLHF's timers of every steady step."""
    for step, metrics in list(job.metrics.items())[1:]:
        for timer, spans in TIMERS.items():
            [traced_s] = job.rows(
                "SELECT sum(end_ns - start_ns) / 1e9 FROM spans"
                f" WHERE role = 'controller' AND step = {step} AND {spans}"
            )
            yield "OpenRLHF's timers", part_of_allowed(float(traced_s), metrics[timer])


def logged_s(job: Finished) -> list[float]:
    """OpenRLHF's own seconds of the steps after the first."""
    return [metrics["timing/step_total"] for metrics in list(job.metrics.values())[1:]]


def run_all(folder: Path, runs: int, steps: int) -> dict[str, list[Finished]]:
    """Runs of each kind, in an order that reverses every round."""
    assets = make_assets(folder / "sums")
    quick = replace(JOBS["sync"], steps=steps)
    slow = replace(quick, environment=(("REWARD_DELAY_S", str(DELAY_S)),))
    kinds = {"slow": (slow, True), "untraced": (slow, False), "quick": (quick, True)}

    def run(kind: str, nth: int) -> Finished:
        job, traced = kinds[kind]
        return train(job, assets, folder / f"{nth}-{kind}", traced)

    return in_turn(list(kinds), runs, run)


def saving(result: Result, done: dict[str, list[Finished]]) -> None:
    """What verdicts cost a step, as reported and as seen without their delays."""
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
    seen, shown = float(middle_means(saved)), slow - quick
    result.notes["a step saves without the delays"] = (
        f"{seen:.4f} s (95 % {low:.4f} to {high:.4f}, {len(saved)} steps)"
    )
    result.notes["verdicts cost, as reported"] = f"{shown:.4f} s"
    off = abs(shown - seen) / ((high - low) / 2)
    what = "cost of verdicts off what is saved without, as a part of its noise"
    result.checks.append(Check(what, off, 1.0, ""))


@click.command()
@click.option("--runs", default=3, show_default=True, help="Rounds of three runs.")
@click.option("--steps", default=12, show_default=True, help="Steps a run; the first is left out.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(runs: int, steps: int, as_json: bool) -> None:
    """Truth and cost of traces of OpenRLHF; exits 1 when a limit is missed."""
    result = Result("Error, as a part of what is allowed (5 % or 5 ms)", "1")
    with tempfile.TemporaryDirectory() as name:
        done = run_all(Path(name), runs, steps)
        errors(result, map(busy_error, done["slow"]))
        saving(result, done)
        errors(result, (e for job in (*done["slow"], *done["quick"]) for e in timer_errors(job)))
        cost_of_steps(result, "step", map(logged_s, done["slow"]), map(logged_s, done["untraced"]))
        cost_of_events(result, done["slow"], steps)
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
