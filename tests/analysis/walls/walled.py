"""Runs of six steps made by hand, in which one thing costs what is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rltrace.testing.inside.analysis import Summary, Wall, summarize
from rltrace.testing.inside.trace import Fate, Finish, Stage
from rltrace.testing.made import process, rows, run_of
from rltrace.testing.played import Process

STEPS = 6
STEP_S = 10.0


def turns(**seconds: float) -> list[tuple[Any, ...]]:
    """Spans of steps of 10 s in which stages take turns: `rollout=6, train=4`."""
    spans: list[tuple[Any, ...]] = []
    for n in range(STEPS):
        now = n * STEP_S
        spans.append((("step", n), now, now + STEP_S))
        for name, length_s in seconds.items():
            spans.append((Stage[name.upper()], now, now + length_s))
            now += length_s
    return spans


def samples(made: Process, latencies_s: list[float], **columns: Any) -> Process:
    """Trajectories of each step, all begun as it begins; `tokens` go with their time. A column is
    one value for all, or a function of step and place."""
    places = [(n, i) for n in range(STEPS) for i in range(len(latencies_s))]
    start = [n * STEP_S for n, _ in places]
    many = {
        name: [value(n, i) if callable(value) else value for n, i in places]
        for name, value in columns.items()
    }
    return rows(
        made,
        "trajectories",
        start_s=start,
        first_token_s=[at + 0.01 for at in start],
        end_s=[n * STEP_S + latencies_s[i] for n, i in places],
        **{
            "trajectory": [1000 * n + i + 1 for n, i in places],
            "group": [100 * n + i // 4 + 1 for n, i in places],
            "first_version": [n for n, _ in places],
            "last_version": [n for n, _ in places],
            "response_tokens": [round(100 * latencies_s[i]) for _, i in places],
            "finish": [int(Finish.STOP)] * len(places),
            **many,
        },
    )


def uses(made: Process, each: int, **columns: Any) -> Process:
    """All samples of a step are trained on at its end, by the version of the step."""
    places = [(n, i) for n in range(STEPS) for i in range(each)]
    many = {
        name: [value(n, i) if callable(value) else value for n, i in places]
        for name, value in columns.items()
    }
    return rows(
        made,
        "uses",
        time_s=[n * STEP_S + 9.9 for n, _ in places],
        **{
            "trajectory": [1000 * n + i + 1 for n, i in places],
            "step": [n for n, _ in places],
            "version": [n for n, _ in places],
            "fate": [int(Fate.TRAINED)] * len(places),
            "tokens": [100] * len(places),
            **many,
        },
    )


def verdicts(made: Process, each: int, value: Any) -> Process:
    """A verdict on each sample: `value(step, place)`."""
    places = [(n, i) for n in range(STEPS) for i in range(each)]
    at = [n * STEP_S + 8.0 for n, _ in places]
    return rows(
        made,
        "rewards",
        start_s=at,
        end_s=at,
        trajectory=[1000 * n + i + 1 for n, i in places],
        component=[0] * len(places),
        value=[float(value(n, i)) for n, i in places],
        outcome=[0] * len(places),
    )


def summary_of(path: Path, *processes: Process, predict: bool = False, **meta: Any) -> Summary:
    """The summary of the run of these processes. What its fixes gain is computed where a test asks
    for it (`predict`): it takes most of the time, and changes nothing of the walls."""
    return summarize(run_of(path, *processes, **meta), predict=predict)


def walls_of(found: Summary) -> dict[str, Wall]:
    """All walls by name."""
    return {wall.name: wall for wall in found.verdict.walls}


def job(**seconds: float) -> Process:
    """One process that does everything, in turns."""
    return process("driver", *turns(**seconds))
