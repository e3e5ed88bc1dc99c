"""Plays a workload through its placement, event by event, and counts.

| placement     | generation of a batch begins        | the learner's step begins     |
|---------------|-------------------------------------|-------------------------------|
| colocated     | once the weights are there          | when the batch is complete    |
| disaggregated | once the weights are there          | when a part of it is complete |
| one-step-off  | with the learner's step before      | when the batch is complete    |
| async         | when the lag bound admits the group | when a part of it is complete |

Weights travel at the end of a step; async goes on meanwhile. The lag of a group is the version that
trains on it minus the one with which its first token was made.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from rltrace.analysis.whatif.events import Clock, Meter, Servers, Worker
from rltrace.analysis.whatif.workload import Batch, Workload
from rltrace.trace.vocabulary import Stage

_WARM = 3
_STEPS = 10


@dataclass(frozen=True)
class Replay:
    """Means over the steps after the first few, seconds a step. `stages_s` is how long each stage
    worked, `learner_waits_s` how long the learner waited for samples and `rollout_idle_s` how long
    no engine ran. `lags` are shares of the trained groups by lag,
    `stale_share` is the part of the groups that came too late."""

    step_s: float
    steps_s: tuple[float, ...]
    stages_s: dict[Stage, float]
    learner_waits_s: float
    rollout_idle_s: float
    lags: dict[int, float]
    stale_share: float

    @property
    def mean_lag(self) -> float:
        """Mean lag in policy versions."""
        return sum(lag * share for lag, share in self.lags.items())


def replay(workload: Workload) -> Replay:
    """Plays the workload until it runs evenly."""
    return _Play(workload).result()


@dataclass
class _Group:
    """A group on its way: samples that are not generated yet, samples without a verdict, verdicts
    that wait to begin, and the version under which it began."""

    left: int
    unscored: int
    verdicts_s: list[float] = field(default_factory=list)
    version: int = -1


class _Play:
    def __init__(self, workload: Workload) -> None:
        self.load = workload
        self.clock = Clock()
        self.meter = Meter(self.clock)
        engine = workload.engine
        if engine.pooled:
            self.workers = [Worker(self.clock, engine, engine.workers, self.meter)]
        else:
            number = round(engine.workers)
            self.workers = [Worker(self.clock, engine, 1.0, self.meter) for _ in range(number)]
        self.rewards = Servers(self.clock, workload.reward_workers)
        self.reference = Servers(self.clock, 1)
        self.groups = [_groups(batch) for batch in workload.batches]
        self.per_step = len(self.groups[0])
        streams = workload.placement == "async" or workload.keeps_unfinished
        steps = max(_STEPS, len(workload.batches)) if streams else max(2, len(workload.batches))
        self.last = _WARM + steps
        self.version = 0  # of the learner
        self.visible = 0  # at the workers
        self.begun = 0  # groups
        self.ready: deque[_Group] = deque()
        self.generated: list[_Group] = []  # whose verdicts wait for the rest of the batch
        self.generating = 0  # groups
        self.stale = 0
        by_batch = workload.scoring == "batch"
        self.scoring = "group" if by_batch and streams else workload.scoring
        self.wanted: tuple[int, Callable[[], None], bool] | None = None
        self.asked_at = 0.0
        self.waited_s = 0.0
        self.serial_s = 0.0
        self.lags: Counter[int] = Counter()
        self.ends: list[float] = []
        self.marks: list[tuple[float, ...]] = []

    # --- the actors' chain ---

    def begin_group(self) -> None:
        number = self.begun
        self.begun += 1
        batch = (number // self.per_step) % len(self.groups)
        samples = self.groups[batch][number % self.per_step % len(self.groups[batch])]
        group = _Group(len(samples), len(samples))
        worker = min(self.workers, key=lambda worker: worker.load)
        self.generating += 1
        for tokens, env_s, verdict_s in samples:
            self._begin_sample(worker, group, tokens, env_s, verdict_s)

    def _begin_sample(
        self, worker: Worker, group: _Group, tokens: float, env_s: float, verdict_s: float
    ) -> None:
        def begun() -> None:
            if group.version < 0:
                group.version = self.visible

        def ended() -> None:
            self._sample_ended(group, verdict_s)

        def called() -> None:
            self.clock.after(env_s, lambda: worker.submit(tokens / 2, _nothing, ended))

        if env_s > 0:  # the tool answers halfway; meanwhile the sequence takes no slot
            worker.submit(tokens / 2, begun, called)
        else:
            worker.submit(tokens, begun, ended)

    def _sample_ended(self, group: _Group, verdict_s: float) -> None:
        group.left -= 1
        group.verdicts_s.append(verdict_s)
        self.generating -= group.left == 0
        if self.scoring == "sample" or (self.scoring == "group" and not group.left):
            self._judge(group)
        elif self.scoring == "batch" and not group.left:
            self.generated.append(group)
            if not self.generating:
                complete, self.generated = self.generated, []
                for one in complete:
                    self._judge(one)

    def _judge(self, group: _Group) -> None:
        def done() -> None:
            group.unscored -= 1
            if not group.unscored:
                share_s = self.load.reference_s / self.per_step
                self.reference.serve(share_s, lambda: self._complete(group))

        verdicts_s, group.verdicts_s = group.verdicts_s, []
        for seconds in verdicts_s:
            self.rewards.serve(seconds, done)

    def _complete(self, group: _Group) -> None:
        self.ready.append(group)
        self._give()

    # --- the learner's chain ---

    def take(self, groups: int, then: Callable[[], None], keep: bool = False) -> None:
        """Waits for so many groups, and goes on with the oldest; or leaves them there (`keep`)."""
        self.wanted, self.asked_at = (groups, then, keep), self.clock.now
        self._give()

    def _give(self) -> None:
        if self.wanted is None:
            return
        if self.load.drops_stale:
            self._drop_stale()
        if len(self.ready) < self.wanted[0]:
            return
        groups, then, keep = self.wanted
        self.wanted = None
        self.waited_s += self.clock.now - self.asked_at
        if not keep:
            oldest = sorted(self.ready, key=lambda group: group.version)
            for group in oldest[:groups]:
                if len(self.ends) >= _WARM:
                    self.lags[self.version - group.version] += 1
                self.ready.remove(group)
        then()

    def _drop_stale(self) -> None:
        oldest = self.version - math.ceil(self.load.lag_bound)
        stale = [group for group in self.ready if group.version < oldest]
        for group in stale:
            self.ready.remove(group)
        self.begun -= len(stale)
        self.stale += len(stale) if len(self.ends) >= _WARM else 0
        if stale:
            self._admit()

    def learn(self, then: Callable[[], None]) -> None:
        """A step: parts of the batch as they come, each with its part of the learner's stages."""
        load = self.load
        chunks = load.chunks if load.placement in ("disaggregated", "async") else 1
        seconds = load.learner_s(len(self.ends)) + load.rest_s
        sizes = [self.per_step // chunks] * (chunks - 1)
        sizes.append(self.per_step - sum(sizes))

        def work(part: int) -> None:
            if part == chunks:
                self.version += 1
                then()
                return
            share = seconds * sizes[part] / self.per_step
            self.serial_s += share
            self.take(sizes[part], lambda: self.clock.after(share, lambda: work(part + 1)))

        work(0)

    def step_ends(self) -> None:
        self.ends.append(self.clock.now)
        self.marks.append((self.clock.now, self.meter.busy_s, self.waited_s, self.rewards.busy_s))
        self.clock.stopped = len(self.ends) >= self.last

    # --- placements ---

    def run(self) -> None:
        placement = self.load.placement
        if placement == "async":
            self._admit()
            self._async_step()
        elif self.load.keeps_unfinished:
            self._top_up()
            self._kept_step()
        else:
            self._begin_batch()
            self._batch_step()
        self.clock.run()

    def _begin_batch(self) -> None:
        for _ in range(self.per_step):
            self.begin_group()

    def _batch_step(self) -> None:
        ahead = self.load.placement == "one-step-off"

        def learned() -> None:
            if ahead:  # the weights wait for both: nothing may be half generated under them
                self.take(self.per_step, moved, keep=True)
            else:
                moved()

        def moved() -> None:
            self.clock.after(self.load.sync.seconds + self.load.switch_s, visible)

        def visible() -> None:
            self.visible = self.version
            self.step_ends()
            if not ahead:
                self._begin_batch()
            start()

        def start() -> None:
            if not ahead:
                self.learn(learned)
                return
            self.take(self.per_step, begin)

        def begin() -> None:
            self._begin_batch()
            seconds = self.load.learner_s(len(self.ends)) + self.load.rest_s
            self.serial_s += seconds
            self.clock.after(seconds, advanced)

        def advanced() -> None:
            self.version += 1
            learned()

        start()

    def _kept_step(self) -> None:
        """A batch is full with the first groups that end; the others stand still while the learner
        works, and go on under its weights."""

        def full() -> None:
            for worker in self.workers:
                worker.pause()
            seconds = self.load.learner_s(len(self.ends)) + self.load.rest_s
            self.serial_s += seconds
            pause = seconds + self.load.sync.seconds + self.load.switch_s
            self.clock.after(pause, over)

        def over() -> None:
            self.version += 1
            self.visible = self.version
            self.step_ends()
            for worker in self.workers:
                worker.resume()
            self._top_up()
            self._kept_step()

        self.take(self.per_step, full)

    def _top_up(self) -> None:
        wanted = math.ceil(self.load.in_flight * self.per_step)
        while self.begun - len(self.ends) * self.per_step < wanted:
            self.begin_group()

    def _async_step(self) -> None:
        sync = self.load.sync

        def learned() -> None:
            self.clock.after(sync.seconds, visible)
            self.clock.after(sync.seconds * (1 - sync.overlap), ended)

        def visible() -> None:
            self.visible = max(self.visible, self.version)
            self._admit()

        def ended() -> None:
            self.step_ends()
            self.learn(learned)

        self.learn(learned)

    def _admit(self) -> None:
        room = (self.visible + self.load.lag_bound + 1) * self.per_step
        while self.begun < room:
            self.begin_group()

    # --- what came of it ---

    def result(self) -> Replay:
        self.run()
        load, first = self.load, _WARM - 1
        begin, end = self.marks[first], self.marks[-1]
        steps = len(self.marks) - _WARM
        lengths = np.diff([mark[0] for mark in self.marks[first:]])
        step_s, rollout_s, waits_s, reward_s = (
            (b - a) / steps for a, b in zip(begin, end, strict=True)
        )
        stages = {stage: load.mean_s(stage) for stage in load.serial_s}
        stages[Stage.ROLLOUT] = rollout_s
        stages[Stage.REWARD] = reward_s / load.reward_workers
        stages[Stage.REFERENCE] = stages.get(Stage.REFERENCE, 0.0) + load.reference_s
        stages[Stage.SYNC], stages[Stage.SWITCH] = load.sync.seconds, load.switch_s
        idle_s = max(0.0, step_s - rollout_s)
        total = sum(self.lags.values())
        return Replay(
            step_s=step_s,
            steps_s=tuple(float(x) for x in lengths),
            stages_s={stage: seconds for stage, seconds in stages.items() if seconds > 0},
            learner_waits_s=waits_s,
            rollout_idle_s=idle_s,
            stale_share=self.stale / (self.stale + total) if self.stale else 0.0,
            lags={lag: n / total for lag, n in sorted(self.lags.items())} if total else {},
        )


def _groups(batch: Batch) -> list[list[tuple[float, float, float]]]:
    """The samples of each group: tokens, seconds of tools, seconds of the verdict."""
    groups: dict[int, list[tuple[float, float, float]]] = {}
    for group, sample in zip(batch.group, _samples(batch), strict=True):
        groups.setdefault(group, []).append(sample)
    return list(groups.values())


def _samples(batch: Batch) -> Iterator[tuple[float, float, float]]:
    columns = (batch.tokens.tolist(), batch.env_s.tolist(), batch.verdict_s.tolist())
    yield from zip(*columns, strict=True)


def _nothing() -> None:
    """A sequence that comes back from a tool does not begin anew."""
