"""A job played out event by event, whose critical path is therefore known: engines with slots,
verifiers with queues, a learner and its weights, in the four placements.

It does not imitate a framework. It has what makes a path hard to find: samples that wait for slots,
verdicts that queue, batches that are taken in parts, lag bounds, tools, hand-overs nobody records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.synthetic.events import Activity, Server, Simulation, Then
from benchmarks.synthetic.workload import PLACEMENTS
from rltrace.testing.inside.trace import Stage
from rltrace.testing.run_files import SECOND, START_NS


@dataclass(frozen=True)
class Job:
    """The knobs; seconds are medians, lognormal with log-sd `jitter` (generation: `tail`)."""

    placement: str = "disaggregated"
    seed: int = 0
    steps: int = 6
    groups: int = 6
    samples: int = 4
    engines: int = 2
    slots: int = 8
    verifiers: int = 2
    verdicts_at_once: int = 1
    scored_by: str = "sample"  # or "group", "batch"
    chunks: int = 1  # disaggregated: parts in which the learner takes a batch
    max_lag: int = 2  # async
    generate_s: float = 2.0
    tail: float = 0.6
    tools_s: float = 0.0
    verdict_s: float = 0.1
    reference_s: float = 0.2  # of a chunk
    train_s: float = 1.0
    switch_s: float = 0.2
    publish_s: float = 0.1
    load_s: float = 0.05
    hand_over_s: float = 0.01
    jitter: float = 0.2
    longer_ns: tuple[tuple[Stage, int], ...] = ()  # added to each activity of a stage

    def __post_init__(self) -> None:
        if self.placement not in PLACEMENTS:
            raise ValueError(f"placement {self.placement!r} is none of {', '.join(PLACEMENTS)}")


@dataclass
class Sample:
    """One sample: its number, its group, what was done to it, and the step that used it."""

    number: int
    group: int
    version: int = -1
    generation: Activity | None = None
    verdict: Activity | None = None
    step: int = -1


@dataclass
class Update:
    """One weight update: who sent it and who took it in."""

    version: int
    publish: Activity
    loads: list[Activity] = field(default_factory=list)


@dataclass
class Played:
    """What a job did. `steps` are windows in ns; `last` is the activity at whose end the last of
    them ended."""

    job: Job
    activities: list[Activity]
    samples: list[Sample]
    updates: list[Update]
    steps: list[tuple[int, int]]
    last: Activity


def play_job(job: Job) -> Played:
    """Plays it out; equal jobs give equal results, and lengths do not depend on the order."""
    kinds = {"colocated": _Colocated, "disaggregated": _Disaggregated}
    kinds |= {"one-step-off": _OneStepOff, "async": _Async}
    return kinds[job.placement](job).run()


class _Loop(ABC):
    """What all placements have: samples, engines, verifiers, a learner, weights."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.sim = Simulation(START_NS + SECOND)
        self.engines = [Server(job.slots) for _ in range(job.engines)]
        self.verifiers = [Server(job.verdicts_at_once) for _ in range(job.verifiers)]
        self.samples: list[Sample] = []
        self.updates: list[Update] = []
        self.windows: list[tuple[int, int]] = []
        self.version = 0
        self.last: Activity | None = None
        self.begun = 0

    def run(self) -> Played:
        self.begin(0)
        self.sim.run()
        assert self.last is not None
        return Played(
            self.job, self.sim.activities, self.samples, self.updates, self.windows, self.last
        )

    @abstractmethod
    def begin(self, step: int) -> None:
        """A step begins."""

    def end_step(self, step: int) -> bool:
        """Notes the end of a step; whether another one follows."""
        self.windows.append((self.begun, self.sim.now))
        self.begun = self.sim.now
        self.last = self.sim.cause
        return step + 1 < self.job.steps

    def length(self, stage: Stage, seconds: float, *key: int) -> int:
        """Of one activity in ns, drawn by what it is and not by when it comes."""
        job = self.job
        draw = np.random.default_rng([job.seed, int(stage), *key]).standard_normal()
        spread = job.tail if stage is Stage.ROLLOUT else job.jitter
        more = sum(ns for one, ns in job.longer_ns if one is stage)
        return round(seconds * np.exp(spread * draw) * SECOND) + more

    def hand_over(self, then: Then) -> None:
        if not self.job.hand_over_s:
            then()
            return
        length = round(self.job.hand_over_s * SECOND)
        self.sim.work(None, "driver", length, lambda _: then())

    # --- actors ----------------------------------------------------------------------------------

    def ask(self, group: int, done: Callable[[list[Sample]], None]) -> None:
        """Generates and judges the samples of a group, in the way of this job."""
        job = self.job
        made = [Sample(group * job.samples + i, group) for i in range(job.samples)]
        self.samples += made
        left = {"generated": len(made), "judged": len(made)}

        def generated(sample: Sample) -> None:
            left["generated"] -= 1
            if job.scored_by == "sample":
                self.judge(sample, judged)
            elif job.scored_by == "group" and not left["generated"]:
                for one in made:
                    self.judge(one, judged)
            elif job.scored_by == "batch" and not left["generated"]:
                done(made)

        def judged() -> None:
            left["judged"] -= 1
            if not left["judged"]:
                done(made)

        for sample in made:
            self.generate(sample, generated)

    def generate(self, sample: Sample, done: Callable[[Sample], None]) -> None:
        at = sample.group % self.job.engines
        length = self.length(Stage.ROLLOUT, self.job.generate_s, sample.number)
        tools = self.length(Stage.ENV, self.job.tools_s, sample.number) if self.job.tools_s else 0

        def begin() -> None:
            sample.version = self.version
            self.sim.work(Stage.ROLLOUT, f"rollout/{at}", length + tools, end, tools)

        def end(activity: Activity) -> None:
            sample.generation = activity
            self.engines[at].leave()
            done(sample)

        self.engines[at].enter(begin)

    def judge(self, sample: Sample, done: Then) -> None:
        at = sample.number % self.job.verifiers
        length = self.length(Stage.REWARD, self.job.verdict_s, sample.number)

        def end(activity: Activity) -> None:
            sample.verdict = activity
            self.verifiers[at].leave()
            done()

        self.verifiers[at].enter(lambda: self.sim.work(Stage.REWARD, f"reward/{at}", length, end))

    def batch(self, step: int, part: Callable[[list[Sample]], None]) -> None:
        """The groups of a batch; `part` gets them as they are done, or all at once where the whole
        batch is judged together."""
        job = self.job
        made: list[Sample] = []
        left = [job.groups]

        def group_done(samples: list[Sample]) -> None:
            if job.scored_by != "batch":
                part(samples)
                return
            made.extend(samples)
            left[0] -= 1
            if not left[0]:
                judged = [len(made)]
                for sample in made:
                    self.judge(sample, lambda: one_judged(judged))

        def one_judged(judged: list[int]) -> None:
            judged[0] -= 1
            if not judged[0]:
                part(made)

        for group in range(step * job.groups, (step + 1) * job.groups):
            self.ask(group, group_done)

    # --- learner ---------------------------------------------------------------------------------

    def learn(self, step: int, then: Then) -> None:
        """Reference pass, training and publication of a whole batch."""
        self.refer(step, 0, lambda: self.train(step, then))

    def refer(self, step: int, chunk: int, then: Then) -> None:
        length = self.length(Stage.REFERENCE, self.job.reference_s, step, chunk)
        self.sim.work(Stage.REFERENCE, "learner/0", length, lambda _: self.hand_over(then))

    def train(self, step: int, then: Then) -> None:
        length = self.length(Stage.TRAIN, self.job.train_s, step)
        publishing = self.length(Stage.SYNC, self.job.publish_s, step)

        def published(activity: Activity) -> None:
            self.updates.append(Update(step + 1, activity))
            then()

        self.sim.work(
            Stage.TRAIN,
            "learner/0",
            length,
            lambda _: self.sim.work(Stage.SYNC, "learner/0", publishing, published),
        )

    def load(self, then: Then) -> None:
        """All engines take in the newest version."""
        update = self.updates[-1]
        left = [self.job.engines]

        def loaded(activity: Activity) -> None:
            update.loads.append(activity)
            left[0] -= 1
            if not left[0]:
                self.version = update.version
                then()

        for engine in range(self.job.engines):
            length = self.length(Stage.SYNC, self.job.load_s, update.version, 1 + engine)
            self.sim.work(Stage.SYNC, f"rollout/{engine}", length, loaded)

    def use(self, step: int, samples: list[Sample]) -> None:
        for sample in samples:
            sample.step = step


class _Colocated(_Loop):
    """Everything in turn."""

    def begin(self, step: int) -> None:
        self.begun = self.sim.now
        left = [self.job.engines]

        def awake(_: Activity) -> None:
            left[0] -= 1
            if not left[0]:
                self.batch(step, part)

        batch: list[Sample] = []

        def part(samples: list[Sample]) -> None:
            batch.extend(samples)
            if len(batch) == self.job.groups * self.job.samples:
                self.use(step, batch)
                self.hand_over(lambda: self.learn(step, lambda: self.load(over)))

        def over() -> None:
            if self.end_step(step):
                self.begin(step + 1)

        for engine in range(self.job.engines):
            length = self.length(Stage.SWITCH, self.job.switch_s, step, engine)
            self.sim.work(Stage.SWITCH, f"rollout/{engine}", length, awake)


class _Disaggregated(_Loop):
    """Strictly on policy; the learner may take a batch in parts while the rest is made."""

    def begin(self, step: int) -> None:
        job = self.job
        self.begun = self.sim.now
        arrived: list[Sample] = []
        parts = min(job.chunks, job.groups) if job.scored_by != "batch" else 1
        marks = [job.groups * (i + 1) // parts * job.samples for i in range(parts)]
        state = {"referred": 0, "busy": 0}

        def part(samples: list[Sample]) -> None:
            arrived.extend(samples)
            go_on()

        def go_on() -> None:
            done = state["referred"]
            if state["busy"] or done == len(marks) or len(arrived) < marks[done]:
                return
            state["busy"] = 1
            self.hand_over(lambda: self.refer(step, done, referred))

        def referred() -> None:
            state["busy"] = 0
            state["referred"] += 1
            if state["referred"] == len(marks):
                self.use(step, arrived)
                self.train(step, lambda: self.load(over))
            else:
                go_on()

        def over() -> None:
            if self.end_step(step):
                self.begin(step + 1)

        self.batch(step, part)


class _OneStepOff(_Loop):
    """The next batch is made beside the learner's step; the weights travel after both."""

    def begin(self, step: int) -> None:
        batch: list[Sample] = []

        def part(samples: list[Sample]) -> None:
            batch.extend(samples)
            if len(batch) == self.job.groups * self.job.samples:
                self.begun = self.sim.now if not step else self.begun
                self.both(0, batch)

        self.batch(0, part)

    def both(self, step: int, batch: list[Sample]) -> None:
        job = self.job
        following: list[Sample] = []
        more = step + 1 < job.steps
        left = [1 + more]

        def part(samples: list[Sample]) -> None:
            following.extend(samples)
            if len(following) == job.groups * job.samples:
                ready()

        def ready() -> None:
            left[0] -= 1
            if not left[0]:
                self.hand_over(lambda: self.load(over))

        def over() -> None:
            if self.end_step(step):
                self.both(step + 1, following)

        self.use(step, batch)
        if more:
            self.batch(step + 1, part)
        self.hand_over(lambda: self.learn(step, ready))


class _Async(_Loop):
    """Groups are made all the time, as far as the lag bound lets them begin."""

    def begin(self, step: int) -> None:
        self.begun = self.sim.now
        self.asked = 0
        self.ready: list[list[Sample]] = []
        self.idle = True
        self.loading = False
        self.step = 0
        self.admit()

    def admit(self) -> None:
        job = self.job
        while self.asked // job.groups <= self.version + job.max_lag:
            if self.asked >= job.groups * job.steps or len(self.windows) == job.steps:
                return
            self.asked += 1
            self.ask(self.asked - 1, self.arrived)

    def arrived(self, samples: list[Sample]) -> None:
        self.ready.append(samples)
        self.next()

    def next(self) -> None:
        job = self.job
        if not self.idle or len(self.ready) < job.groups or self.step == job.steps:
            return
        self.idle = False
        batch, self.ready = self.ready[: job.groups], self.ready[job.groups :]
        self.use(self.step, [sample for group in batch for sample in group])
        self.hand_over(lambda: self.learn(self.step, self.learned))

    def learned(self) -> None:
        self.refresh()
        self.end_step(self.step)
        self.step += 1
        self.idle = True
        self.next()

    def refresh(self) -> None:
        if self.loading or self.version == self.updates[-1].version:
            return
        self.loading = True
        self.load(self.arrived_weights)

    def arrived_weights(self) -> None:
        self.loading = False
        self.refresh()
        self.admit()
