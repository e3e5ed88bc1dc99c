"""Jobs whose samples call a tool, played out: workers with places for so many samples take them
from one queue, judges score them, and a learner trains on each batch and sends its weights.

While its tool works a sample keeps its place at the worker, or gives it to another one and takes
the next free place once the tool has answered. What a change gains is known by playing the job
with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.synthetic.events import Activity, Server, Simulation
from rltrace.testing.inside.trace import Fate, Finish, Outcome, Run, Stage
from rltrace.testing.made import process, rows, run_of
from rltrace.testing.played import SECOND, START_NS

FILLING = 8
"""Steps in which queues may still fill up."""


@dataclass(frozen=True)
class Tooled:
    """The knobs: mean seconds of decoding, of the tool and of a verdict of one sample, and of the
    learner's stages in a step. `before` is the part of the decoding before the tool is called.
    `ahead` are the batches that may begin before the weights that the learner makes of the one it
    waits for; 0: the batch of a step begins with the step. As many samples wait for a judge as
    there is `room` for; one more keeps its place at the worker. Nobody records any without
    `versions`. Samples that begin `early` do so with the step, and wait for a place in their own
    time; their turns are recorded."""

    decode_s: float = 0.2
    tool_s: float = 0.6
    verdict_s: float = 0.01
    train_s: float = 0.2
    sync_s: float = 0.01
    workers: int = 2
    places: int = 4
    keeps: bool = True
    before: float = 0.5
    judges: int = 1
    room: int = 10**9
    batch: int = 16
    ahead: int = 2
    versions: bool = True
    early: bool = False
    steps: int = 30
    sigma: float = 0.3
    tool_sigma: float = 0.0


@dataclass
class Sample:
    """What a sample did."""

    number: int
    worker: int
    version: int
    start: int
    decode: float
    tool: float
    issued: int
    called: int = 0
    answered: int = 0
    resumed: int = 0
    end: int = 0
    left: bool = False
    judged: tuple[int, int] = (0, 0)


@dataclass
class _Worker:
    free: int
    back: deque[Callable[[], None]] = field(default_factory=deque)


class Play:
    """The job, played to its end."""

    def __init__(self, job: Tooled) -> None:
        self.job, self.sim = job, Simulation(START_NS + SECOND)
        self.rng = np.random.default_rng(5)
        self.workers = [_Worker(job.places) for _ in range(job.workers)]
        self.judges = Server(job.judges)
        self.samples: list[Sample] = []
        self.unjudged: list[Sample] = []
        self.issued = self.begun = 0
        self.ready: deque[Sample] = deque()
        self.steps: list[tuple[int, int, int]] = []  # begins, trains, sends; each ends with another
        self.ends: list[int] = []
        self.used: list[tuple[int, Sample]] = []
        self.since = self.sim.now
        self.waits = False
        self._step()
        self.sim.run()

    def step_s(self) -> float:
        """Seconds a step, once queues are as full as they get."""
        return (self.ends[-1] - self.ends[FILLING]) / (len(self.ends) - 1 - FILLING) / SECOND

    def _step(self) -> None:
        if len(self.ends) == self.job.steps:
            return
        self.since, self.waits = self.sim.now, True
        self.issued = (len(self.ends) + 1 + self.job.ahead) * self.job.batch
        self._fill()
        self._learn()

    def _fill(self) -> None:
        for worker in self.workers:
            while worker.free and worker.back:
                worker.free -= 1
                worker.back.popleft()()
        while self.begun < self.issued:
            number = max(range(len(self.workers)), key=lambda n: self.workers[n].free)
            if not self.workers[number].free:
                return
            self.workers[number].free -= 1
            self._begin(number)

    def _begin(self, number: int) -> None:
        job, worker = self.job, self.workers[number]
        decode, tool = self.rng.lognormal(0, job.sigma), self.rng.lognormal(0, job.tool_sigma)
        one = Sample(
            self.begun, number, len(self.ends), self.sim.now, job.decode_s * decode,
            job.tool_s * tool, self.since,
        )  # fmt: skip
        self.begun += 1

        def after(seconds: float, then: Callable[[Activity], None]) -> None:
            self.sim.work(None, "", max(1, round(seconds * SECOND)), then)

        def called(_: Activity) -> None:
            one.called = self.sim.now
            after(one.tool, answered)
            if not job.keeps:
                worker.free += 1
                self._fill()

        def answered(_: Activity) -> None:
            one.answered = self.sim.now
            if job.keeps:
                goes_on()
            else:
                worker.back.append(goes_on)
                self._fill()

        def goes_on() -> None:
            one.resumed = self.sim.now
            after(one.decode * (1 - job.before), ended)

        def ended(_: Activity) -> None:
            one.end = self.sim.now
            self.samples.append(one)
            self.unjudged.append(one)
            self.judges.enter(judge)
            self._leave(*self.unjudged[: job.room])

        def judge() -> None:
            begins = self.sim.now
            self._leave(one)
            self.unjudged.remove(one)
            self._leave(*self.unjudged[: job.room])

            def judged(_: Activity) -> None:
                one.judged = begins, self.sim.now
                self.judges.leave()
                self.ready.append(one)
                self._learn()

            after(job.verdict_s, judged)

        after(one.decode * job.before, called)

    def _leave(self, *samples: Sample) -> None:
        """They leave their places, if they have not."""
        for one in samples:
            self.workers[one.worker].free += not one.left
            one.left = True
        self._fill()

    def _learn(self) -> None:
        job = self.job
        if not self.waits or len(self.ready) < job.batch:
            return
        self.waits, trains = False, self.sim.now
        self.used += [(len(self.ends), self.ready.popleft()) for _ in range(job.batch)]

        def trained(_: Activity) -> None:
            sends = self.sim.now

            def sent(_: Activity) -> None:
                self.steps.append((self.since, trains, sends))
                self.ends.append(self.sim.now)
                self._step()

            self.sim.work(None, "", round(job.sync_s * SECOND), sent)

        self.sim.work(None, "", round(job.train_s * SECOND), trained)


def gain(job: Tooled, other: Tooled) -> float:
    """The step of the one over that of the other."""
    return Play(job).step_s() / Play(other).step_s()


def traced(path: Path, job: Tooled) -> Run:
    """What its processes record."""
    play = Play(job)
    spans: list[tuple[Any, ...]] = []
    for n, ((begins, trains, sends), end) in enumerate(zip(play.steps, play.ends, strict=True)):
        spans += [(("step", n), _at(begins), _at(end)), (Stage.TRAIN, _at(trains), _at(sends))]
        spans.append((Stage.SYNC, _at(sends), _at(end)))
    learner = process("learner", *spans)
    rows(
        learner, "uses", time_s=[_at(play.steps[n][2]) - 1e-3 for n, _ in play.used],
        trajectory=[one.number + 1 for _, one in play.used], step=[n for n, _ in play.used],
        version=[n if job.versions else -1 for n, _ in play.used],
        fate=[int(Fate.TRAINED)] * len(play.used),
        tokens=[round(1000 * one.decode) for _, one in play.used],
    )  # fmt: skip
    parts = [learner]
    for number in range(job.workers):
        mine = [one for one in play.samples if one.worker == number]
        spans = []
        for one in mine:
            lane = one.number % 256 + 2
            turns = [(one.start, one.called), (one.resumed, one.end)]
            for begin, end in turns if job.early else [(one.start, one.end)]:
                spans.append((Stage.ROLLOUT, _at(begin), _at(end), lane))
            if job.tool_s:
                spans.append((Stage.ENV, _at(one.called), _at(one.answered), lane))
        parts.append(rows(
            process("generator", *spans, rank=number), "trajectories",
            start_s=[_at(one.issued if job.early else one.start) for one in mine],
            end_s=[_at(one.end) for one in mine],
            trajectory=[one.number + 1 for one in mine], group=[one.number // 4 for one in mine],
            response_tokens=[round(1000 * one.decode) for one in mine],
            env_ns=[one.answered - one.called if job.tool_s else 0 for one in mine],
            first_version=[one.version if job.versions else -1 for one in mine],
            finish=[int(Finish.STOP)] * len(mine),
        ))  # fmt: skip
    judged = [one for one in play.samples if one.judged[1]]
    parts.append(rows(
        process("reward"), "rewards", start_s=[_at(one.judged[0]) for one in judged],
        end_s=[_at(one.judged[1]) for one in judged],
        trajectory=[one.number + 1 for one in judged],
        value=[float(one.number % 2) for one in judged], outcome=[int(Outcome.OK)] * len(judged),
    ))  # fmt: skip
    return run_of(path, *parts, settings={"placement": "async" if job.ahead else "disaggregated"})


def _at(moment: int) -> float:
    return (moment - START_NS) / SECOND
