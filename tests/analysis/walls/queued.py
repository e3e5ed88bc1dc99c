"""A job with queues between its processes, played out: generators put samples into a queue with so
much room, judges take them out and put them into another, a learner takes batches out of that and
sends its weights before it takes the next one. Who finds a queue full or empty waits.

A sample may call a tool. While that works the sample keeps its place at the generator, or gives it
to another one and takes the next free place once the tool has answered.

What a stage costs, and what a change gains, is known by playing the same job without or with it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import rltrace
from benchmarks.synthetic.events import Simulation, Then
from rltrace.testing.handmade_runs import rows, run_of
from rltrace.testing.inside.trace import Fate, Finish, Outcome, Stage, SyncRole
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.run_files import SECOND, START_NS, Interval, Process

FILLING = 8
"""Steps in which the queues may still fill up."""
ENDLESS = 10**9


@dataclass(frozen=True)
class Queued:
    """The knobs, in seconds: what a sample takes a generator, its tool and a judge (evenly spread
    by `jitter`, or one of their own), and a step the learner. Each generator has so many samples
    at once. The tool is called after the part `before` of the decoding. `ahead` are the batches
    that may begin before the weights that the learner makes of the one it waits for; 0: the batch
    of a step begins with the step. `pauses`: generators stand still while weights are sent, with
    their samples open. Nobody records any version without `versions`. Samples that begin `early` do
    so with the step, and wait for a place in their own time; their turns are recorded."""

    generate_s: float = 0.5
    tool_s: float = 0.0
    judge_s: float = 0.1
    train_s: float = 0.5
    sync_s: float = 0.05
    generators: int = 2
    at_once: int = 1
    judges: int = 2
    room: int = 16
    batch: int = 8
    ahead: int = ENDLESS
    steps: int = 24
    jitter: float = 0.3
    tool_jitter: float = 0.0
    judge_jitter: float | None = None
    before: float = 0.5
    keeps: bool = True
    pauses: bool = False
    versions: bool = True
    early: bool = False
    seed: int = 0

    def without(self, *stages: Stage) -> Queued:
        """The same, where these stages take next to no time."""
        none: dict[str, Any] = {_SECONDS[stage]: 1e-5 for stage in stages}
        return replace(self, **none)


_SECONDS = {Stage.ROLLOUT: "generate_s", Stage.ENV: "tool_s", Stage.REWARD: "judge_s",
            Stage.TRAIN: "train_s", Stage.SYNC: "sync_s"}  # fmt: skip


@dataclass
class _Sample:
    """What a sample did, in ns."""

    number: int
    generator: int
    version: int
    issued: int
    start: int
    decodes: int
    turns: list[Interval] = field(default_factory=list)
    tools: list[Interval] = field(default_factory=list)
    judge: int = -1
    judged: Interval = (0, 0)

    @property
    def end(self) -> int:
        return self.turns[-1][1]

    @property
    def lane(self) -> int:
        return self.number % 256 + 3


class _Queue:
    """First in, first out, with room for so many."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.held: deque[_Sample] = deque()
        self.putting: deque[tuple[_Sample, Then]] = deque()
        self.taking: deque[Callable[[_Sample], None]] = deque()

    def put(self, sample: _Sample, then: Then) -> None:
        """Goes on once there is room."""
        self.putting.append((sample, then))
        self._move()

    def take(self, then: Callable[[_Sample], None]) -> None:
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
        self.free = [job.at_once] * job.generators
        self.back: list[deque[Then]] = [deque() for _ in self.free]
        self.issued = self.since = 0
        self.samples: list[_Sample] = []
        self.steps: list[Interval] = []
        self.trains: list[Interval] = []
        self.sends: list[Interval] = []
        self.used: list[tuple[int, _Sample]] = []  # step, sample
        self.waits: dict[tuple[str, int], list[Interval]] = {}  # whose: role, rank
        for judge in range(job.judges):
            self.judge(judge)
        self.learn()
        self.sim.run()

    def length(self, seconds: float, jitter: float, *key: int) -> int:
        spread = np.random.default_rng([self.job.seed, *key]).uniform(-1, 1) * jitter
        return max(1, round(seconds * (1 + spread) * SECOND))

    def after(self, length: int, then: Then) -> None:
        self.sim.work(None, "", length, lambda _: then())

    def waited(self, role: str, rank: int, since: int) -> None:
        if self.sim.now > since:
            self.waits.setdefault((role, rank), []).append((since, self.sim.now))

    def fill(self) -> None:
        """All free places are taken by who is back from its tool, or begins."""
        for generator, back in enumerate(self.back):
            while back and self.free[generator]:
                self.free[generator] -= 1
                back.popleft()()
        while max(self.free) and len(self.samples) < self.issued:
            if len(self.steps) == self.job.steps:
                return
            generator = self.free.index(max(self.free))
            self.free[generator] -= 1
            self.generate(generator)

    def generate(self, generator: int) -> None:
        job, number = self.job, len(self.samples)
        decodes = self.length(job.generate_s, job.jitter, 1, number)
        one = _Sample(number, generator, len(self.steps), self.since, self.sim.now, decodes)
        self.samples.append(one)

        def called() -> None:
            begun = self.sim.now
            self.leave(generator, not job.keeps)

            def answered() -> None:
                one.tools.append((begun, self.sim.now))
                if job.keeps:
                    ends()
                else:
                    self.back[generator].append(ends)
                    self.fill()

            self.after(self.length(job.tool_s, job.tool_jitter, 5, number), answered)

        def ends() -> None:
            self.decode(one, decodes - sum(end - begin for begin, end in one.turns), ended)

        def ended() -> None:
            def put() -> None:
                self.waited("generator", generator, one.end)
                self.leave(generator)

            self.made.put(one, put)

        if job.tool_s:
            self.decode(one, round(job.before * decodes), called)
        else:
            ends()

    def leave(self, generator: int, leaves: bool = True) -> None:
        self.free[generator] += leaves
        self.fill()

    def decode(self, one: _Sample, length: int, then: Then) -> None:
        begun = self.sim.now

        def go_on() -> None:
            left = length - (self.sim.now - begun) + self.stopped(begun)
            if left > 0:  # it is not looked at again before it can be made
                self.after(left + self.standing(), go_on)
            else:
                one.turns.append((begun, self.sim.now))
                then()

        self.after(max(1, length), go_on)

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
        job, since = self.job, self.sim.now
        jitter = job.jitter if job.judge_jitter is None else job.judge_jitter

        def begin(one: _Sample) -> None:
            self.waited("judge", judge, since)
            begun = self.sim.now

            def judged() -> None:
                one.judge, one.judged = judge, (begun, self.sim.now)
                self.judged.put(one, lambda: self.judge(judge))

            self.after(self.length(job.judge_s, jitter, 2, one.number), judged)

        self.made.take(begin)

    def learn(self) -> None:
        job, step = self.job, len(self.steps)
        if step == job.steps:
            return
        self.since = since = self.sim.now
        self.issued = (step + 1 + job.ahead) * job.batch
        batch: list[_Sample] = []

        def taken(sample: _Sample) -> None:
            batch.append(sample)
            if len(batch) < job.batch:
                self.judged.take(taken)
                return
            self.waited("learner", 0, since)
            self.used.extend((step, sample) for sample in batch)
            self.after(self.length(job.train_s, job.jitter, 3, step), trained)
            self.trains.append((self.sim.now, -1))

        def trained() -> None:
            now = self.sim.now
            length = self.length(job.sync_s, job.jitter, 4, step)
            self.trains[-1] = self.trains[-1][0], now
            self.sends.append((now, now + length))
            self.after(length, sent)

        def sent() -> None:
            self.steps.append((since, self.sim.now))
            self.learn()

        self.fill()
        self.judged.take(taken)


@cache
def step_s(job: Queued) -> float:
    """Seconds a step, once the queues are as full as they get."""
    lengths = [end - start for start, end in _Play(job).steps[FILLING:]]
    return float(np.mean(lengths)) / SECOND


def cost(job: Queued, *stages: Stage) -> float:
    """The part of the step that falls away without these stages."""
    return 1 - step_s(job.without(*stages)) / step_s(job)


def gain(job: Queued, **changes: Any) -> float:
    """The step of the job over that of the job with these changes."""
    return step_s(job) / step_s(replace(job, **changes))


def processes(job: Queued) -> list[Process]:
    """What the processes of the job record."""
    play = _Play(job)
    generators = [Process("generator", i, 0) for i in range(job.generators)]
    judges = [Process("judge", i, 0) for i in range(job.judges)]
    learner = _learner(play)
    of = {"learner": [learner], "generator": generators, "judge": judges}
    for (role, rank), waits in play.waits.items():
        for when in waits:
            of[role][rank].span(when, f"{role} waits", Stage.WAIT, -1, lane=2)
    for made in generators:
        _samples(made, job, [one for one in play.samples if one.generator == made.rank])
    for made in judges:
        _verdicts(made, [one for one in play.samples if one.judge == made.rank])
    return [learner, *generators, *judges]


def _at(moment: int) -> float:
    return (moment - START_NS) / SECOND


def _learner(play: _Play) -> Process:
    made, used = Process("learner", 0, 0), play.used
    for n, window in enumerate(play.steps):
        made.span(window, "step", Stage.STEP, n)
        made.span(play.trains[n], "train", Stage.TRAIN, -1)
        made.span(play.sends[n], "sync", Stage.SYNC, -1)
    rows(
        made, "syncs", start_s=[_at(begin) for begin, _ in play.sends],
        end_s=[_at(end) for _, end in play.sends],
        version=[n + 1 for n in range(len(play.sends))],
        role=[int(SyncRole.SOURCE)] * len(play.sends),
    )  # fmt: skip
    return rows(
        made, "uses", time_s=[_at(play.steps[step][1]) - 1e-3 for step, _ in used],
        trajectory=[one.number + 1 for _, one in used], step=[step for step, _ in used],
        version=[step if play.job.versions else -1 for step, _ in used],
        fate=[int(Fate.TRAINED)] * len(used), tokens=[one.decodes // 10**6 for _, one in used],
    )  # fmt: skip


def _samples(made: Process, job: Queued, mine: list[_Sample]) -> None:
    versions = [one.version if job.versions else -1 for one in mine]
    for one in mine:
        for when in one.turns if job.early else [(one.start, one.end)]:
            made.span(when, "rollout", Stage.ROLLOUT, -1, lane=one.lane)
        for when in one.tools:
            made.span(when, "env", Stage.ENV, -1, lane=one.lane)
    rows(
        made, "trajectories", start_s=[_at(one.issued if job.early else one.start) for one in mine],
        end_s=[_at(one.end) for one in mine], trajectory=[one.number + 1 for one in mine],
        group=[one.number // 4 + 1 for one in mine], first_version=versions, last_version=versions,
        response_tokens=[one.decodes // 10**6 for one in mine],
        env_ns=[sum(end - begin for begin, end in one.tools) for one in mine],
        finish=[int(Finish.STOP)] * len(mine),
    )  # fmt: skip


def _verdicts(made: Process, mine: list[_Sample]) -> None:
    for one in mine:
        made.span(one.judged, "reward", Stage.REWARD, -1, lane=one.lane)
    rows(
        made, "rewards", start_s=[_at(one.judged[0]) for one in mine],
        end_s=[_at(one.judged[1]) for one in mine], trajectory=[one.number + 1 for one in mine],
        value=[float(one.number % 2) for one in mine], outcome=[int(Outcome.OK)] * len(mine),
    )  # fmt: skip


def traced(path: Path, job: Queued) -> Run:
    """The run of the job, which states how it is placed."""
    placement = "async" if job.ahead else "disaggregated"
    return run_of(path, *processes(job), settings={"placement": placement})


def of_own_loop(path: Path, *made: Process) -> Run:
    """A run of these in a loop of the user's own, which has no adapter."""
    path = run_of(path, *made).path
    for file in (path / "process").glob("*.json"):
        facts = json.loads(file.read_text())
        file.write_text(json.dumps({k: v for k, v in facts.items() if k != "adapter"}))
    return rltrace.open_run(path)
