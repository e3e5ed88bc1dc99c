"""A played job as a run directory, and the truth about its critical path, told by its causes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.synthetic.events import Activity, path_to
from benchmarks.synthetic.files import WEIGHTS_LANE, StepPlan, Timeline, Worker, write
from benchmarks.synthetic.job import Job, Played, Update, play_job
from benchmarks.synthetic.timeline import ids
from benchmarks.synthetic.workload import Workload
from rltrace.testing.inside.trace import Fate, Finish, Outcome, Stage, SyncRole, Transport, word
from rltrace.testing.run_files import SECOND

UNKNOWN = "unknown"


@dataclass(frozen=True)
class PathTruth:
    """Seconds on the path by stage name, in each step and in all; `activities` is how many of each
    stage are on it. The first step began at `start_ns`, and the last one ended at `end_ns`."""

    steps_s: tuple[dict[str, float], ...]
    total_s: dict[str, float]
    activities: dict[str, int]
    start_ns: int
    end_ns: int


def make_job(path: Path, job: Job, spans: int = 0) -> PathTruth:
    """Plays a job and writes its run, with about so many inner spans, into the new directory."""
    played = play_job(job)
    processes = _processes(played)
    plans = [StepPlan(i, window, False) for i, window in enumerate(played.steps)]
    write(path, Workload(gpus=0, spans=spans), Timeline(processes, plans, []))
    return path_truth(played)


def path_truth(played: Played) -> PathTruth:
    """The truth about what was played."""
    chain = path_to(played.last)
    since = played.steps[0][0]
    on_path = Counter(_name(a.stage) for a in chain if a.end > since)
    stretches = [piece for activity in chain for piece in _stretches(activity)]
    steps = tuple(_seconds(stretches, *window) for window in played.steps)
    whole = _seconds(stretches, since, played.steps[-1][1])
    return PathTruth(steps, whole, dict(on_path), since, played.steps[-1][1])


def _stretches(activity: Activity) -> list[tuple[str, int, int]]:
    if not activity.tools:
        return [(_name(activity.stage), activity.start, activity.end)]
    tools = activity.end - activity.tools
    return [
        (_name(activity.stage), activity.start, tools),
        (word(Stage.ENV), tools, activity.end),
    ]


def _name(stage: Stage | None) -> str:
    return UNKNOWN if stage is None else word(stage)


def _seconds(stretches: list[tuple[str, int, int]], since: int, until: int) -> dict[str, float]:
    seconds: Counter[str] = Counter()
    for name, start, end in stretches:
        seconds[name] += max(0, min(end, until) - max(start, since))
    return {name: ns / SECOND for name, ns in seconds.items() if ns}


def _processes(played: Played) -> list[Worker]:
    names = sorted({a.process for a in played.activities if a.stage is not None})
    made = {name: Worker(name.split("/")[0], int(name.split("/")[1]), 0) for name in names}
    driver = Worker("driver", 0, 0)
    for step, window in enumerate(played.steps):
        driver.span(window, "step", Stage.STEP, step)
    for activity in played.activities:
        if activity.stage in (None, Stage.ROLLOUT, Stage.REWARD):
            continue
        lane = WEIGHTS_LANE if activity.process.startswith("rollout") else 1
        when = (activity.start, activity.end)
        made[activity.process].span(when, word(activity.stage), activity.stage, -1, lane=lane)
    for name, process in made.items():
        if process.role == "rollout":
            _generations(process, name, played)
        if process.role == "reward":
            _verdicts(process, name, played)
    for update in played.updates:
        _update(made, update)
    _uses(driver, played)
    return [driver, *made.values()]


def _generations(process: Worker, name: str, played: Played) -> None:
    """Rows of the samples, and a span of the engine while it has any."""
    mine = [s for s in played.samples if s.generation and s.generation.process == name]
    times = sorted((s.generation.start, s.generation.end) for s in mine if s.generation)
    busy: list[tuple[int, int]] = []
    for start, end in times:
        if busy and start <= busy[-1][1]:
            busy[-1] = (busy[-1][0], max(busy[-1][1], end))
        else:
            busy.append((start, end))
    for one in busy:
        process.span(one, "Engine", Stage.ROLLOUT, -1)
        process.inner.append(one)
    generations = [s.generation for s in mine if s.generation]
    start_ns = np.array([g.start for g in generations])
    tokens = np.array([(g.end - g.start - g.tools) // 10**7 + 1 for g in generations])
    process.rows(
        "trajectories",
        start_ns=start_ns,
        first_token_ns=start_ns + 1_000_000,
        end_ns=np.array([g.end for g in generations]),
        trajectory=ids(1, np.array([s.number for s in mine])),
        group=ids(2, np.array([s.group for s in mine])),
        first_version=np.array([s.version for s in mine]),
        last_version=np.array([s.version for s in mine]),
        response_tokens=tokens,
        env_ns=np.array([g.tools for g in generations]),
        finish=np.full(len(mine), int(Finish.STOP)),
    )


def _verdicts(process: Worker, name: str, played: Played) -> None:
    mine = [s for s in played.samples if s.verdict and s.verdict.process == name]
    verdicts = [s.verdict for s in mine if s.verdict]
    for sample, verdict in zip(mine, verdicts, strict=True):
        when = (verdict.start, verdict.end)
        process.span(when, "score", Stage.REWARD, -1, lane=sample.number + 10)
    process.rows(
        "rewards",
        start_ns=np.array([v.start for v in verdicts]),
        end_ns=np.array([v.end for v in verdicts]),
        trajectory=ids(1, np.array([s.number for s in mine])),
        component=np.full(len(mine), "correct"),
        value=np.array([float(s.number % 2) for s in mine]),
        outcome=np.full(len(mine), int(Outcome.OK)),
    )


def _update(made: dict[str, Worker], update: Update) -> None:
    for activity in (update.publish, *update.loads):
        role = SyncRole.SOURCE if activity is update.publish else SyncRole.SINK
        made[activity.process].rows(
            "syncs",
            start_ns=np.array([activity.start]),
            end_ns=np.array([activity.end]),
            version=np.array([update.version]),
            role=np.array([int(role)]),
            bytes=np.array([10**9]),
            transport=np.array([int(Transport.TCP)]),
        )


def _uses(driver: Worker, played: Played) -> None:
    used = [s for s in played.samples if 0 <= s.step < len(played.steps)]
    step = np.array([s.step for s in used])
    driver.rows(
        "uses",
        time_ns=np.array([played.steps[s.step][1] - 1 for s in used]),
        trajectory=ids(1, np.array([s.number for s in used])),
        step=step,
        version=step,
        fate=np.full(len(used), int(Fate.TRAINED)),
        tokens=np.full(len(used), 100),
    )
