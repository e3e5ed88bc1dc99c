"""How true the stages of a trace are against stamps of the job's own code, and what tracing costs:
what the benchmarks of framework adapters share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from benchmarks.measuring import Check, Result, interval, middle_means, spread
from rltrace.testing.inside.analysis import break_down, find_steps, read_activity, summarize
from rltrace.testing.inside.trace import Stage
from tests.framework_jobs import Ended

SHARE, LEAST_S = 0.05, 0.005
"""How far a figure may be off: so much of it, or so many seconds where that is more."""

MOST_SLOWER, MOST_BUSY = 1.03, 0.01
"""Of a traced step over an untraced one, and of what recording costs over the job's time."""

Error = tuple[str, float]
"""What is held against what, and how far off it is as a part of what it may be."""

RunT = TypeVar("RunT")


def part_of_allowed(traced_s: float, true_s: float) -> float:
    """How far a figure is off, as a part of what it may be; above 1 is too far."""
    return abs(traced_s - true_s) / max(SHARE * true_s, LEAST_S)


def covered_s(intervals: Iterable[tuple[int, int]]) -> float:
    """Length of the union of intervals of nanoseconds."""
    total, reached = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total / 1e9


def stage_errors(jobs: Iterable[Ended[Any]], stamped: Mapping[str, Stage]) -> Iterator[Error]:
    """Each stage of every steady step against the stamps of what is `stamped`; nothing is said of
    a step in which neither has it. A stage that no step of any job has is an error that is not a
    number, which no limit allows."""
    unseen = dict(stamped)
    for job in jobs:
        for what, error in _stage_errors(job, stamped):
            unseen.pop(what, None)
            yield _against_stamps(stamped[what]), error
    for stage in unseen.values():
        yield _against_stamps(stage), float("nan")


def _against_stamps(stage: Stage) -> str:
    return f"{stage.name.lower()} / stamps"


def _stage_errors(job: Ended[Any], stamped: Mapping[str, Stage]) -> Iterator[Error]:
    """What was stamped, and how far off its stage is."""
    activity = read_activity(job.run)
    steps = find_steps(job.run, (activity.first_ns, activity.last_ns))
    found = break_down(activity, steps)
    for place, window in list(enumerate(steps.windows))[1:]:
        for what, stage in stamped.items():
            inside = [
                (max(stamp["start_ns"], window.start_ns), min(stamp["end_ns"], window.end_ns))
                for stamp in job.stamps(what)
                if stamp["end_ns"] > window.start_ns and stamp["start_ns"] < window.end_ns
            ]
            traced_s = float(found.tau_s[place, stage])
            if inside or traced_s:
                yield what, part_of_allowed(traced_s, covered_s(inside))


def in_turn(
    kinds: Sequence[str], rounds: int, run: Callable[[str, int], RunT]
) -> dict[str, list[RunT]]:
    """Runs each kind once a round, in an order that reverses every round (A B B A)."""
    done: dict[str, list[RunT]] = {kind: [] for kind in kinds}
    for nth in range(rounds):
        for kind in list(kinds)[:: -1 if nth % 2 else 1]:
            done[kind].append(run(kind, nth))
    return done


def errors(result: Result, found: Iterable[Error]) -> None:
    """The spread of errors, of which the middle one is held to what is allowed."""
    by_name: dict[str, list[float]] = {}
    for what, error in found:
        by_name.setdefault(what, []).append(error)
    for what, values in by_name.items():
        result.rows[what] = spread(values)
        result.checks.append(Check(f"{what}, median", result.rows[what].median, 1.0, ""))


def cost_of_steps(
    result: Result,
    what: str,
    traced: Iterable[Sequence[float]],
    untraced: Iterable[Sequence[float]],
    limited: bool = True,
) -> None:
    """What tracing costs: the ratio of equal steps of traced and untraced runs, by the framework's
    own clock in seconds a step."""
    ratios = np.array(
        [
            ours / theirs
            for one, other in zip(traced, untraced, strict=True)
            for ours, theirs in zip(one, other, strict=True)
        ]
    )
    low, high = interval(ratios, level=0.9, statistic=middle_means)
    result.notes[f"{what}, traced / untraced"] = (
        f"{float(middle_means(ratios)):.4f} (mean of the middle 60 % of {len(ratios)} pairs),"
        f" 90 % {low:.4f} to {high:.4f}"
    )
    if limited:
        bound = f"{what} time traced / untraced, upper 95 % bound"
        result.checks.append(Check(bound, high, MOST_SLOWER, ""))


def cost_of_events(result: Result, jobs: Iterable[Ended[Any]], steps: int) -> None:
    """What is recorded in a step, and by each report's own-cost line its part of the steps."""
    for job in jobs:
        cost = summarize(job.run).own_cost
        [wall_s] = job.rows("SELECT (max(end_ns) - min(start_ns)) / 1e9 FROM steps")
        result.notes["events a step"] = (
            f"{cost.events / steps:,.0f}, {cost.event_cost_ns:,.0f} ns each in the mean"
        )
        what = "the report's own-cost line, of the steps"
        result.checks.append(Check(what, cost.cpu_s / float(wall_s), MOST_BUSY, ""))
