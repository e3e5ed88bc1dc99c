"""An asynchronous job with queues between its processes, played out: generators put samples into a
queue with so much room, judges take them out and put them into another, a learner takes batches out
of that and sends its weights before it takes the next one. Who finds a queue full or empty waits.

What a stage costs is known by playing the same job without it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import rltrace
from benchmarks.synthetic.events import Activity, Simulation, Then
from rltrace.testing.inside.trace import Fate, Finish, Outcome, Run, Stage, SyncRole
from rltrace.testing.made import rows, run_of
from rltrace.testing.played import SECOND, START_NS, Interval, Process

FILLING = 8
"""Steps in which the queues may still fill up."""


@dataclass(frozen=True)
class Queued:
    """The knobs, in seconds: what a sample takes a generator and a judge (evenly spread by
    `jitter`), and a step the learner. Each generator has so many samples at once. `pauses`: they
    stand still while weights are sent, with their samples open."""

    generate_s: float = 0.5
    judge_s: float = 0.1
    train_s: float = 0.5
    sync_s: float = 0.05
    generators: int = 2
    at_once: int = 1
    judges: int = 2
    room: int = 16
    batch: int = 8
    steps: int = 24
    jitter: float = 0.3
    pauses: bool = False
    seed: int = 0

    def without(self, *stages: Stage) -> Queued:
        """The same, where these stages take next to no time."""
        name = {
            Stage.ROLLOUT: "generate_s",
            Stage.REWARD: "judge_s",
            Stage.TRAIN: "train_s",
            Stage.SYNC: "sync_s",
        }
        none: dict[str, Any] = {name[stage]: 1e-5 for stage in stages}
        return replace(self, **none)


class _Queue:
    """First in, first out, with room for so many."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.held: deque[int] = deque()
        self.putting: deque[tuple[int, Then]] = deque()
        self.taking: deque[Callable[[int], None]] = deque()

    def put(self, sample: int, then: Then) -> None:
        """Goes on once there is room."""
        self.putting.append((sample, then))
        self._move()

    def take(self, then: Callable[[int], None]) -> None:
        """Goes on once there is something."""
        self.taking.append(then)
        self._move()

    def _move(self) -> None:
        while True:
            if self.putting and len(self.held) < self.room:
                sample, then = self.putting.popleft()
                self.held.append(sample)
                then()
            elif self.taking and self.held:
                self.taking.popleft()(self.held.popleft())
            else:
                return


class _Play:
    def __init__(self, job: Queued) -> None:
        self.job, self.sim = job, Simulation(START_NS + SECOND)
        self.made, self.judged = _Queue(job.room), _Queue(job.room)
        self.begun = self.version = 0
        self.versions: dict[int, int] = {}
        self.generated: dict[int, tuple[int, int, Activity]] = {}  # generator, place
        self.verdicts: dict[int, tuple[int, Activity]] = {}
        self.steps: list[Interval] = []
        self.sends: list[Interval] = []
        self.used: list[tuple[int, int]] = []  # step, sample
        self.learner: list[Activity] = []
        self.waits: list[tuple[str, int, int, Interval]] = []  # whose: role, rank, lane

    def run(self) -> None:
        for generator in range(self.job.generators):
            for place in range(self.job.at_once):
                self.generate(generator, place)
        for judge in range(self.job.judges):
            self.judge(judge)
        self.learn()
        self.sim.run()

    def over(self) -> bool:
        return len(self.steps) == self.job.steps

    def length(self, seconds: float, *key: int) -> int:
        spread = np.random.default_rng([self.job.seed, *key]).uniform(-1, 1) * self.job.jitter
        return max(1, round(seconds * (1 + spread) * SECOND))

    def waited(self, role: str, rank: int, lane: int, since: int) -> None:
        if self.sim.now > since:
            self.waits.append((role, rank, lane, (since, self.sim.now)))

    def generate(self, generator: int, place: int) -> None:
        if self.over():
            return
        sample, self.begun = self.begun, self.begun + 1
        self.versions[sample] = self.version

        def made(activity: Activity) -> None:
            self.generated[sample] = generator, place, activity
            since = self.sim.now

            def put() -> None:
                self.waited("generator", generator, place, since)
                self.generate(generator, place)

            self.made.put(sample, put)

        begun = self.sim.now
        length = self.length(self.job.generate_s, 1, sample)

        def go_on(activity: Activity) -> None:
            left = length - (self.sim.now - begun) + self.stopped(begun)
            if left > 0:
                left += self.standing()  # it is not looked at again before it can be made
                self.sim.work(Stage.ROLLOUT, activity.process, left, go_on)
            else:
                made(replace(activity, start=begun))

        self.sim.work(Stage.ROLLOUT, f"generator/{generator}", length, go_on)

    def stopped(self, since: int) -> int:
        """How long generation has stood still since then."""
        if not self.job.pauses:
            return 0
        until = self.sim.now
        return sum(max(0, min(end, until) - max(begin, since)) for begin, end in self.sends)

    def standing(self) -> int:
        """How long generation goes on to stand still for weights that are being sent now."""
        ends = [end for begin, end in self.sends if begin <= self.sim.now]
        return max(0, max(ends, default=0) - self.sim.now) if self.job.pauses else 0

    def judge(self, judge: int) -> None:
        since = self.sim.now

        def begin(sample: int) -> None:
            self.waited("judge", judge, 0, since)

            def judged(activity: Activity) -> None:
                self.verdicts[sample] = judge, activity
                self.judged.put(sample, lambda: self.judge(judge))

            length = self.length(self.job.judge_s, 2, sample)
            self.sim.work(Stage.REWARD, f"judge/{judge}", length, judged)

        if not self.over():
            self.made.take(begin)

    def learn(self) -> None:
        since = self.sim.now
        batch: list[int] = []

        def taken(sample: int) -> None:
            batch.append(sample)
            if len(batch) < self.job.batch:
                self.judged.take(taken)
                return
            self.waited("learner", 0, 0, since)
            step = len(self.steps)
            self.used.extend((step, sample) for sample in batch)
            length = self.length(self.job.train_s, 3, step)
            self.sim.work(Stage.TRAIN, "learner/0", length, trained)

        def trained(activity: Activity) -> None:
            self.learner.append(activity)
            length = self.length(self.job.sync_s, 4, len(self.steps))
            self.sends.append((self.sim.now, self.sim.now + length))
            self.sim.work(Stage.SYNC, "learner/0", length, sent)

        def sent(activity: Activity) -> None:
            self.learner.append(activity)
            self.version += 1
            self.steps.append((since, self.sim.now))
            if not self.over():
                self.learn()

        self.judged.take(taken)


@cache
def step_s(job: Queued) -> float:
    """Seconds a step, once the queues are as full as they get."""
    play = _Play(job)
    play.run()
    lengths = [end - start for start, end in play.steps[FILLING:]]
    return float(np.mean(lengths)) / SECOND


def cost(job: Queued, *stages: Stage) -> float:
    """The part of the step that falls away without these stages."""
    return 1 - step_s(job.without(*stages)) / step_s(job)


def processes(job: Queued) -> list[Process]:
    """What the processes of the job record."""
    play = _Play(job)
    play.run()
    learner = Process("learner", 0, 0)
    generators = [Process("generator", i, 0) for i in range(job.generators)]
    judges = [Process("judge", i, 0) for i in range(job.judges)]
    of = {"learner": [learner], "generator": generators, "judge": judges}
    for n, window in enumerate(play.steps):
        learner.span(window, "step", Stage.STEP, n)
    for role, rank, lane, when in play.waits:
        of[role][rank].span(when, f"{role} waits", Stage.WAIT, -1, lane=lane + 1)
    for activity in play.learner:
        stage = Stage(activity.stage or 0)
        when = (activity.start, activity.end)
        learner.span(when, stage.name.lower(), stage, -1)
    _samples(play, generators)
    _verdicts(play, judges)
    sends = [activity for activity in play.learner if activity.stage is Stage.SYNC]
    rows(
        learner,
        "syncs",
        start_s=[_at(activity.start) for activity in sends],
        end_s=[_at(activity.end) for activity in sends],
        version=[n + 1 for n in range(len(sends))],
        role=[int(SyncRole.SOURCE)] * len(sends),
    )
    rows(
        learner,
        "uses",
        time_s=[_at(play.steps[step][1]) - 1e-3 for step, _ in play.used],
        trajectory=[sample + 1 for _, sample in play.used],
        step=[step for step, _ in play.used],
        version=[step for step, _ in play.used],
        fate=[int(Fate.TRAINED)] * len(play.used),
        tokens=[50] * len(play.used),
    )
    return [learner, *generators, *judges]


def _at(moment: int) -> float:
    return (moment - START_NS) / SECOND


def _samples(play: _Play, generators: list[Process]) -> None:
    for rank, process in enumerate(generators):
        mine = {n: one for n, one in play.generated.items() if one[0] == rank}
        for _, place, activity in mine.values():
            when = (activity.start, activity.end)
            process.span(when, "rollout", Stage.ROLLOUT, -1, lane=place + 1)
        ended = [activity for _, _, activity in mine.values()]
        rows(
            process,
            "trajectories",
            start_s=[_at(activity.start) for activity in ended],
            end_s=[_at(activity.end) for activity in ended],
            trajectory=[n + 1 for n in mine],
            group=[n // 4 + 1 for n in mine],
            first_version=[play.versions[n] for n in mine],
            last_version=[play.versions[n] for n in mine],
            response_tokens=[50] * len(mine),
            finish=[int(Finish.STOP)] * len(mine),
        )


def _verdicts(play: _Play, judges: list[Process]) -> None:
    for rank, process in enumerate(judges):
        mine = {n: one for n, (judge, one) in play.verdicts.items() if judge == rank}
        for activity in mine.values():
            process.span((activity.start, activity.end), "reward", Stage.REWARD, -1)
        rows(
            process,
            "rewards",
            start_s=[_at(activity.start) for activity in mine.values()],
            end_s=[_at(activity.end) for activity in mine.values()],
            trajectory=[n + 1 for n in mine],
            value=[float(n % 2) for n in mine],
            outcome=[int(Outcome.OK)] * len(mine),
        )


def of_own_loop(path: Path, *made: Process) -> Run:
    """A run of these in a loop of the user's own, which has no adapter."""
    path = run_of(path, *made).path
    for file in (path / "process").glob("*.json"):
        facts = json.loads(file.read_text())
        file.write_text(json.dumps({k: v for k, v in facts.items() if k != "adapter"}))
    return rltrace.open_run(path)
