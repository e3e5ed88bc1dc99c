"""Runs of six steps made by hand, in which one thing costs what is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rltrace.testing.handmade_runs import process, rows, run_of
from rltrace.testing.inside.analysis import Summary, Wall, summarize
from rltrace.testing.inside.trace import Fate, Finish
from rltrace.testing.run_files import Process

STEPS = 6
STEP_S = 10.0


def in_steps(step_s: float, *spans: tuple[Any, ...], count: int = STEPS) -> list[tuple[Any, ...]]:
    """These spans in each of so many steps that are so long, at seconds of the step; `("step", 0)`
    is the step's own."""
    return [
        (("step", n) if isinstance(what, tuple) else what, n * step_s + a, n * step_s + b, *lane)
        for n in range(count)
        for what, a, b, *lane in spans
    ]


def turns(**seconds: float) -> list[tuple[Any, ...]]:
    """Spans of steps of 10 s in which stages take turns: `rollout=6, train=4`."""
    ends = np.cumsum(list(seconds.values())).tolist()
    parts = [(name, end - seconds[name], end) for name, end in zip(seconds, ends, strict=True)]
    return in_steps(STEP_S, (("step", 0), 0, STEP_S), *parts)


def samples(made: Process, latencies_s: list[float], **columns: Any) -> Process:
    """Trajectories of each step, all begun as it begins; `tokens` go with their time. A column is
    one value for all, or a function of step and place."""
    places, many = _of_places(len(latencies_s), columns)
    start = [n * STEP_S for n, _ in places]
    own = {
        "trajectory": [1000 * n + i + 1 for n, i in places],
        "group": [100 * n + i // 4 + 1 for n, i in places],
        "first_version": [n for n, _ in places], "last_version": [n for n, _ in places],
        "response_tokens": [round(100 * latencies_s[i]) for _, i in places],
        "finish": [int(Finish.STOP)] * len(places), **many,
    }  # fmt: skip
    end = [n * STEP_S + latencies_s[i] for n, i in places]
    first = [at + 0.01 for at in start]
    return rows(made, "trajectories", start_s=start, first_token_s=first, end_s=end, **own)


def uses(made: Process, each: int, **columns: Any) -> Process:
    """All samples of a step are trained on at its end, by the version of the step."""
    places, many = _of_places(each, columns)
    own = {
        "trajectory": [1000 * n + i + 1 for n, i in places], "step": [n for n, _ in places],
        "version": [n for n, _ in places], "fate": [int(Fate.TRAINED)] * len(places),
        "tokens": [100] * len(places), **many,
    }  # fmt: skip
    return rows(made, "uses", time_s=[n * STEP_S + 9.9 for n, _ in places], **own)


def verdicts(made: Process, each: int, value: Any) -> Process:
    """A verdict on each sample: `value(step, place)`."""
    places, values = _of_places(each, {"value": value})
    at = [n * STEP_S + 8.0 for n, _ in places]
    return rows(
        made, "rewards", start_s=at, end_s=at, value=[float(one) for one in values["value"]],
        trajectory=[1000 * n + i + 1 for n, i in places], component=[0] * len(places),
        outcome=[0] * len(places),
    )  # fmt: skip


def _of_places(each: int, columns: dict[str, Any]) -> tuple[list[tuple[int, int]], dict[str, Any]]:
    """Step and place of all samples, and these columns of them."""
    places = [(n, i) for n in range(STEPS) for i in range(each)]
    return places, {
        name: [value(n, i) if callable(value) else value for n, i in places]
        for name, value in columns.items()
    }


def summary_of(path: Path, *processes: Process, predict: bool = False, **meta: Any) -> Summary:
    """The summary of the run of these processes. What its fixes gain is computed where a test asks
    for it (`predict`): it takes most of the time, and changes nothing of the walls."""
    return summarize(run_of(path, *processes, **meta), predict=predict)


def walls_of(found: Summary) -> dict[str, Wall]:
    """All walls by name."""
    return {wall.name: wall for wall in found.verdict.walls}


def first(found: Summary) -> str:
    """The name of the wall that binds first; empty where none does."""
    return found.verdict.first.name if found.verdict.first else ""


def job(**seconds: float) -> Process:
    """One process that does everything, in turns."""
    return process("driver", *turns(**seconds))
