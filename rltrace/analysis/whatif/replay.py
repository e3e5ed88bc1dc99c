"""Plays a workload through its placement, event by event; moves its devices.

| placement     | generation of a batch begins        | the learner's step begins     |
|---------------|-------------------------------------|-------------------------------|
| colocated     | once the weights are there          | when the batch is complete    |
| disaggregated | once the weights are there          | when a part of it is complete |
| one-step-off  | with the learner's step before      | when the batch is complete    |
| async         | when the lag bound admits the group | when a part of it is complete |

Weights travel at the end of a step, one version after the other; async goes on meanwhile, or stands
still where the run did, and what became old while another version travelled is not sent. The lag of
a group is the version that trains on it minus the one with which its first token was made.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from operator import attrgetter

import numpy as np

from rltrace.analysis.timeline.intervals import Floats
from rltrace.analysis.whatif.discrete_events import Actors, EventClock, ReplayedGroup
from rltrace.analysis.whatif.workload import AT_ONCE, Constants, StepWorkload, transfer_s
from rltrace.trace.vocabulary import Stage

_STEPS = 5
_Process = Iterator[float | None]
_FURTHEST = 32  # steps that generation may be ahead; room for more makes no step faster


@dataclass(frozen=True)
class Replay:
    """Means over steps in which the job runs evenly, seconds a step (for the learner's waits, too).
    `lags` are shares of trained groups by lag, `stale_share` the part that came too late, `beside`
    that of a stage's time while another went on (a learner with cores of its own is `TRAIN`). More
    slots than `most_at_once` for a worker change nothing."""

    step_s: float
    steps_s: tuple[float, ...]
    stages_s: dict[Stage, float]
    learner_waits_s: float
    lags: dict[int, float]
    stale_share: float
    beside: dict[Stage, float]
    most_at_once: float = field(compare=False)

    @property
    def mean_lag(self) -> float:
        return sum(lag * share for lag, share in self.lags.items())


@lru_cache(maxsize=128)
def replay(workload: StepWorkload) -> Replay:
    """Plays the workload until it runs evenly; what was played lately is not played again."""
    return Play(workload).result()


class Play:
    """Processes are the learner's chain and the placement: they yield seconds, None for groups."""

    def __init__(self, workload: StepWorkload) -> None:
        self.load = workload
        self.lag_bound = min(workload.lag_bound, _FURTHEST)
        self.clock = EventClock()
        batches = len(workload.batches)
        ahead = math.ceil(self.lag_bound) + 1
        if any(batch.env_s.any() for batch in workload.batches):
            ahead *= 2  # tools that answer together part slowly
        least = max(_STEPS, ahead) if workload.streams else 2
        stretch = batches * math.ceil(least / batches)  # steps: the same work in each
        self.actors = Actors(workload, self.clock, self._complete)
        self.per_step = self.actors.per_step
        self.tally = Tally(stretch, workload.streams, self.per_step)
        self.version = 0
        self.sent = 0  # in async: the version that arrived last, or is on its way
        self.ready: list[ReplayedGroup] = []
        self.stale = 0
        self.may_be_stale = False  # some group that is ready
        self.on_way = 0  # groups, where they come in batches
        self.wanted = 0  # groups for which the learner waits
        self.waited_s = 0.0
        self.ends: list[float] = []
        self.learner = self._steps()

    def _go_on(self, process: _Process) -> None:
        """Until it waits."""
        for seconds in process:
            if seconds is not None:
                self.clock.after(seconds, partial(self._go_on, process))
            break

    def _complete(self, group: ReplayedGroup) -> None:
        self.ready.append(group)
        self.may_be_stale |= group.version < self._oldest()
        self.on_way -= 1
        if self.wanted and self._are_there():
            self._go_on(self.learner)
        if self.load.in_batches and not self.on_way:
            self._admit()

    def _are_there(self) -> bool:
        if self.may_be_stale and self.load.drops_stale:
            self._drop_stale()
        return len(self.ready) >= self.wanted

    def _oldest(self) -> int:
        """The version of which a group is just in time."""
        return self.version - math.ceil(self.lag_bound)

    def _wait_for(self, groups: int) -> _Process:
        self.wanted, asked_at = groups, self.clock.now
        if not self._are_there():
            yield None
        self.wanted = 0
        self.waited_s += self.clock.now - asked_at

    def _take(self, groups: int) -> _Process:
        """Waits for so many groups, and takes the oldest."""
        yield from self._wait_for(groups)
        oldest = sorted(self.ready, key=attrgetter("version"))
        self.tally.lags[-1].update(self.version - group.version for group in oldest[:groups])
        left = {id(group) for group in oldest[groups:]}
        self.ready = [group for group in self.ready if id(group) in left]

    def _drop_stale(self) -> None:
        self.may_be_stale, oldest = False, self._oldest()
        kept = [group for group in self.ready if group.version >= oldest]
        if late := len(self.ready) - len(kept):
            self.ready = kept
            self.actors.begun -= late
            self.stale += late
            self._admit()

    def _learn(self) -> _Process:
        """A step: parts of the batch as they come, each with its part of the learner's stages."""
        load = self.load
        chunks = load.chunks if load.placement in ("disaggregated", "async") else 1
        stages = self._stages()
        size, more = divmod(self.per_step, chunks)
        for groups in (*[size] * (chunks - 1), size + more):
            yield from self._take(groups)
            share = groups / self.per_step
            yield from self._train([(stage, seconds * share) for stage, seconds in stages])
        self.version += 1
        self.may_be_stale = True

    def _stages(self) -> list[tuple[Stage, float]]:
        load, seconds = self.load, self.load.learner_s(len(self.ends))
        if not load.shares_cores:
            return [(Stage.TRAIN, sum(seconds.values()) + load.rest_s)]
        return [*sorted(seconds.items()), (Stage.TRAIN, load.rest_s)]

    def _train(self, stages: list[tuple[Stage, float]]) -> _Process:
        for stage, seconds in stages:
            self.actors.meter.change(stage, 1)
            yield seconds
            self.actors.meter.change(stage, -1)

    def _step_ends(self) -> None:
        self.ends.append(self.clock.now)
        meter, judged_s = self.actors.meter, self.actors.judged_s
        now = (self.clock.now, meter.busy_s(Stage.ROLLOUT), self.waited_s, judged_s, self.stale)
        if self.tally.step_ends(now, len(self.ready)):
            self.clock.stopped = self.tally.is_over()
            if not self.clock.stopped:
                meter.warm()

    def _steps(self) -> _Process:
        if self.load.keeps_unfinished and self.load.placement != "async":
            return self._kept()
        plays = {"async": self._async, "one-step-off": self._one_step_off}
        return plays.get(self.load.placement, self._in_turn)()

    def _update(self) -> _Process:
        yield self.load.sync.seconds + self.load.switch_s
        self.actors.visible = self.version
        self._step_ends()

    def _in_turn(self) -> _Process:
        while True:
            self.actors.begin_batch()
            yield from self._learn()
            yield from self._update()

    def _one_step_off(self) -> _Process:
        self.actors.begin_batch()
        while True:
            yield from self._take(self.per_step)
            self.actors.begin_batch()
            yield from self._train(self._stages())
            self.version += 1
            # The weights wait for both: nothing may be half generated under them.
            yield from self._wait_for(self.per_step)
            yield from self._update()

    def _kept(self) -> _Process:
        """A batch is full with the first groups that end; others go on under the next weights."""
        wanted = math.ceil(self.load.in_flight * self.per_step)
        while True:
            while self.actors.begun - len(self.ends) * self.per_step < wanted:
                self.actors.begin_group()
            yield from self._take(self.per_step)
            self.actors.pause(True)
            yield from self._train(self._stages())
            self.version += 1
            yield from self._update()
            self.actors.pause(False)

    def _async(self) -> _Process:
        self._admit()
        while True:
            yield from self._learn()
            self._go_on(self._sends())
            yield self.load.sync.seconds * (1 - self.load.sync.overlap)
            self._step_ends()

    def _sends(self) -> _Process:
        """The newest version goes once the one before has arrived: both would share the link."""
        while self.sent == self.actors.visible != self.version:
            self.sent = self.version
            if self.load.weights_stop == AT_ONCE:
                self.actors.pause(True)
            yield self.load.sync.seconds
            self.actors.visible = self.sent
            self.actors.pause(False)
            self._admit()

    def _admit(self) -> None:
        room = (self.actors.visible + self.lag_bound + 1) * self.per_step
        if self.load.in_batches:
            if not self.on_way and self.actors.begun + self.per_step <= room:
                self.on_way = self.per_step
                self.actors.begin_batch()
            return
        while self.actors.begun < room:
            self.on_way += 1
            self.actors.begin_group()

    def result(self) -> Replay:
        self._go_on(self.learner)
        self.clock.run()
        load, (counted, lags) = self.load, self.tally.counted()
        means = (counted[-1] - counted[0]) / (len(counted) - 1)
        step_s, rollout_s, waits_s, reward_s, stale = means.tolist()
        stages = {stage: load.mean_s(stage) for stage in load.serial_s}
        judged_s = stages.get(Stage.REWARD, 0.0) + reward_s / load.reward_workers
        stages[Stage.ROLLOUT], stages[Stage.REWARD] = rollout_s, judged_s
        stages[Stage.REFERENCE] = stages.get(Stage.REFERENCE, 0.0) + load.reference_s
        stages[Stage.SYNC], stages[Stage.SWITCH] = load.sync.seconds, load.switch_s
        total = lags.total()
        return Replay(
            step_s=step_s,
            steps_s=tuple(np.diff(counted[:, 0]).tolist()),
            stages_s={stage: seconds for stage, seconds in stages.items() if seconds > 0},
            learner_waits_s=waits_s,
            stale_share=stale / (stale + self.per_step) if stale else 0.0,
            lags={lag: n / total for lag, n in sorted(lags.items())} if total else {},
            beside=self.actors.meter.beside(),
            most_at_once=self.actors.most_at_once,
        )


_WARM = 3  # the first steps, which count for nothing
_ALIKE = 3  # stretches in a row that are alike in a job that runs evenly
_EVEN = 0.02  # by which they may differ
_MOST_STRETCHES = 30


class Tally:
    """Counts of a replay. Stretches of so many steps have the same work; `streams`: generation runs
    ahead. `marks` are sums up to the end of each step, the time first; `queued` is how many groups
    wait for the learner then, `lags` those that it took in each, by lag; the last goes on."""

    def __init__(self, stretch: int, streams: bool, per_step: int) -> None:
        self.stretch, self.streams, self.per_step = stretch, streams, per_step
        self.marks: list[Floats] = []
        self.queued: list[int] = []
        self.lags: list[Counter[int]] = [Counter()]

    def step_ends(self, mark: tuple[float, ...], queued: int) -> bool:
        """A step has ended; whether it was the last of a stretch, or of those before the first."""
        self.marks.append(np.array(mark, np.float64))
        self.queued.append(queued)
        self.lags.append(Counter())
        steps = len(self.marks) - _WARM
        return steps >= 0 and steps % self.stretch == 0

    def is_over(self) -> bool:
        """If a stretch is the last: of streams, once three take as long with as much queued."""
        stretches = (len(self.marks) - _WARM) // self.stretch
        if not self.streams:
            return stretches == 1
        return stretches >= _ALIKE and (self._is_even() or stretches == _MOST_STRETCHES)

    def counted(self) -> tuple[Floats, Counter[int]]:
        """The marks of the steps that count, the one before them first, and their lags."""
        steps = self.stretch * (_ALIKE if self.streams else 1)
        return np.array(self.marks[-1 - steps :]), sum(self.lags[-1 - steps : -1], Counter())

    def _is_even(self) -> bool:
        n = self.stretch
        lasts = np.diff([mark[0] for mark in self.marks[-1 - _ALIKE * n :: n]])
        queued = np.reshape(self.queued[-_ALIKE * n :], (_ALIKE, n)).mean(axis=1)
        even = np.ptp(lasts) <= _EVEN * lasts.mean()
        return bool(even and np.ptp(queued) <= _EVEN * n * self.per_step)


_SCALING = (Stage.TRAIN, Stage.LOGPROB, Stage.REFERENCE, Stage.VALUE)


def scaled_rollout(load: StepWorkload, factor: float, constants: Constants) -> StepWorkload:
    """`factor` times the devices for generation. On a part of one device, which an engine shares
    with somebody, a token takes as much longer as the part is smaller."""
    engine, known = load.engine, not load.engine.pooled
    workers = engine.workers * (factor if known else factor ** constants["rollout_exponent"])
    engine = replace(engine, workers=workers, pooled=not known or not workers.is_integer())
    devices = {**load.devices}
    if "rollout" in devices:
        before, devices["rollout"] = devices["rollout"], devices["rollout"] * factor
        if known:  # else a device may stand for a pool of them
            slower = min(before, 1.0) / min(devices["rollout"], 1.0)
            engine = replace(engine, token_s=engine.token_s * slower)
    return replace(load, engine=engine, devices=devices)


def scaled_learner(load: StepWorkload, factor: float, constants: Constants) -> StepWorkload:
    devices = {pool: n * factor if pool == "train" else n for pool, n in load.devices.items()}
    return replace(_scaling(load, factor ** -constants["train_exponent"]), devices=devices)


def grown(load: StepWorkload, factor: float, constants: Constants) -> StepWorkload:
    """`factor` times all devices, in the same parts."""
    scaled = scaled_learner(scaled_rollout(load, factor, constants), factor, constants)
    return replace(scaled, devices={pool: n * factor for pool, n in load.devices.items()})


def resplit(load: StepWorkload, rollout: float, train: float, constants: Constants) -> StepWorkload:
    """So many devices for generation and for training, at the same total."""
    if not load.shared:
        return _resized(load, rollout, train, constants)
    whole = dict.fromkeys(("rollout", "train"), load.total_devices)
    load = _resized(replace(load, devices=whole), rollout, train, constants)
    if load.device_kind == "GPU":
        load = _scaling(load, constants["own_devices"])
        if load.rest_s:
            load = replace(load, rest_s=load.rest_s * constants["rest_kept"])
    sync = load.sync
    if not sync.seconds and sync.bytes > 0:
        sync = replace(sync, seconds=transfer_s("bucketed", load, constants))
    elif not sync.seconds:
        load = load.noted("weights are taken to reach the other devices in no time")
    return replace(load, switch_s=0.0, sync=sync)


def merged(load: StepWorkload, constants: Constants) -> StepWorkload:
    """Generation and training on the same GPUs, in turn."""
    total = load.total_devices
    load = _resized(load, total, total, constants)
    load = _scaling(load, 1 / constants["own_devices"])
    step_s = sum(load.mean_s(stage) for stage in load.serial_s)
    switch_s = load.switch_s + constants["switch_share"] * step_s
    return replace(load, devices={"shared": total}, switch_s=switch_s)


def _resized(
    load: StepWorkload, rollout: float, train: float, constants: Constants
) -> StepWorkload:
    load = scaled_rollout(load, rollout / load.devices["rollout"], constants)
    return scaled_learner(load, train / load.devices["train"], constants)


def _scaling(load: StepWorkload, factor: float) -> StepWorkload:
    return load.paced(lambda stage: factor if stage in _SCALING else 1.0)


# --- stages without a GPU that come to share the cores: one takes longer while another works. What
# was measured has that already: only what more of its time a stage then has company slows it.

_ROUNDS = 2  # slower stages overlap in another way, by so little that more rounds tell nothing


def crowded(
    before: StepWorkload, base: Replay, after: StepWorkload, constants: Constants
) -> StepWorkload:
    """`after`, with its stages as slow as what company they then have, over that in `base`."""

    def when(load: StepWorkload) -> tuple[object, ...]:
        runs = load.placement, load.keeps_unfinished, load.chunks, *load.devices.items()
        return *runs, *sorted(load.serial_s)

    if not after.shares_cores or when(before) == when(after):
        return after
    beside, made = constants["shared_cores"], after

    def taken(load: StepWorkload, stage: Stage, company: float) -> float:
        """How many times as long as on cores of its own."""
        pool = "rollout" if stage == Stage.ROLLOUT else "train"
        wanted = load.devices.get(pool, load.total_devices), load.total_devices
        alone, both = (max(1.0, load.busy_cores * n / load.cores) for n in wanted)
        return 1 + load.computes * ((1 - company) * alone + company * both * beside - 1)

    def factor(stage: Stage) -> float:
        it_was = taken(before, stage, base.beside.get(stage, 0.0))
        return taken(made, stage, now.get(stage, 0.0)) / it_was

    for _ in range(_ROUNDS):
        now = replay(made).beside
        engine = after.engine.paced(factor(Stage.ROLLOUT))
        reference_s = after.reference_s * factor(Stage.REFERENCE)
        made = replace(after.paced(factor), engine=engine, reference_s=reference_s)
    return made
