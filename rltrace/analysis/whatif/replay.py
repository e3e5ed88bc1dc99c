"""Plays a workload through its placement, event by event, and counts.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter

import numpy as np

from rltrace.analysis.whatif.actors import Actors, Group
from rltrace.analysis.whatif.events import Clock
from rltrace.analysis.whatif.tally import Tally
from rltrace.analysis.whatif.workload import AT_ONCE, Batch, Workload
from rltrace.trace.vocabulary import Stage

_STEPS = 5
_FURTHEST = 32  # steps that generation may be ahead; room for more makes no step faster


@dataclass(frozen=True)
class Replay:
    """Means over steps in which the job runs evenly, seconds a step. `stages_s` is how long each
    stage worked, `learner_waits_s` how long the learner waited for samples and `rollout_idle_s` how
    long no engine ran. `lags` are shares of the trained groups by lag, `stale_share` is the part of
    the groups that came too late. `beside` is the part of the time of generation, of verdicts, of
    the actors' reference pass and of the learner during which another of them went on: where they
    share cores by each of the learner's stages, else of all of them together (`Stage.TRAIN`)."""

    step_s: float
    steps_s: tuple[float, ...]
    stages_s: dict[Stage, float]
    learner_waits_s: float
    rollout_idle_s: float
    lags: dict[int, float]
    stale_share: float
    beside: dict[Stage, float]

    @property
    def mean_lag(self) -> float:
        """Mean lag in policy versions."""
        return sum(lag * share for lag, share in self.lags.items())


def replay(workload: Workload) -> Replay:
    """Plays the workload until it runs evenly; what was played lately is not played again."""
    return _replayed(played(workload))


def forget() -> None:
    """Whatever was played is played again: for measurements."""
    _replayed.cache_clear()


@lru_cache(maxsize=128)
def _replayed(job: Played) -> Replay:
    return Play(job.load).result()


class Play:
    def __init__(self, workload: Workload) -> None:
        self.load = workload
        self.lag_bound = min(workload.lag_bound, _FURTHEST)
        self.clock = Clock()
        streams = workload.placement == "async" or workload.keeps_unfinished
        batches = len(workload.batches)
        ahead = math.ceil(self.lag_bound) + 1
        if any(batch.env_s.any() for batch in workload.batches):
            ahead *= 2  # tools that answer together part slowly
        least = max(_STEPS, ahead) if streams else 2
        stretch = batches * math.ceil(least / batches)  # steps: the same work in each
        self.actors = Actors(workload, self.clock, streams, self._complete)
        self.per_step = self.actors.per_step
        self.tally = Tally(stretch, streams, self.per_step)
        self.version = 0
        self.sent = 0  # in async: the version that arrived last, or is on its way
        self.ready: list[Group] = []
        self.fresh = 0, 0  # under this version so many of them, the first, are not too late
        self.stale = 0
        self.on_way = 0  # groups, where they come in batches
        self.wanted: tuple[int, Callable[[], None], bool] | None = None
        self.asked_at = 0.0
        self.waited_s = 0.0
        self.ends: list[float] = []

    # --- the learner's chain ---

    def _complete(self, group: Group) -> None:
        self.ready.append(group)
        self.on_way -= 1
        self._give()
        if self.load.in_batches and not self.on_way:
            self._admit()

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
            oldest = sorted(self.ready, key=attrgetter("version"))
            self.tally.lags[-1].update(self.version - group.version for group in oldest[:groups])
            left = {id(group) for group in oldest[groups:]}
            self.ready = [group for group in self.ready if id(group) in left]
            self.fresh = self.version, len(self.ready)
        then()

    def _drop_stale(self) -> None:
        """Groups that come too late are lost: those that do so now, and those that a new version
        makes so."""
        oldest = self.version - math.ceil(self.lag_bound)
        version, known = self.fresh
        looked_at = self.ready[known if version == self.version else 0 :]
        late = sum(group.version < oldest for group in looked_at)
        if late:
            self.ready = [group for group in self.ready if group.version >= oldest]
            self.actors.begun -= late
            self.stale += late
            self._admit()
        self.fresh = self.version, len(self.ready)

    def learn(self, then: Callable[[], None]) -> None:
        """A step: parts of the batch as they come, each with its part of the learner's stages."""
        load = self.load
        chunks = load.chunks if load.placement in ("disaggregated", "async") else 1
        stages = self._stages()
        sizes = [self.per_step // chunks] * (chunks - 1)
        sizes.append(self.per_step - sum(sizes))

        def work(part: int) -> None:
            if part == chunks:
                self.version += 1
                then()
                return
            share = sizes[part] / self.per_step
            mine = [(stage, seconds * share) for stage, seconds in stages]
            self.take(sizes[part], lambda: self._train(mine, lambda: work(part + 1)))

        work(0)

    def _stages(self) -> list[tuple[Stage, float]]:
        """What the learner does in a step, and for how long."""
        load, step = self.load, len(self.ends)
        if not load.shares_cores:
            return [(Stage.TRAIN, load.learner_s(step) + load.rest_s)]
        return [*load.learner_stages(step), (Stage.TRAIN, load.rest_s)]

    def _train(self, stages: Sequence[tuple[Stage, float]], then: Callable[[], None]) -> None:
        """The learner works at these, one after the other."""
        meter = self.actors.meter
        (stage, seconds), *others = stages
        meter.change(stage, 1)

        def over() -> None:
            meter.change(stage, -1)
            if others:
                self._train(others, then)
            else:
                then()

        self.clock.after(seconds, over)

    def step_ends(self) -> None:
        self.ends.append(self.clock.now)
        actors = self.actors
        generated_s = actors.meter.busy_s(Stage.ROLLOUT)
        now = (self.clock.now, generated_s, self.waited_s, actors.rewards.busy_s, self.stale)
        self.tally.step_ends(now, len(self.ready))
        if self.tally.stretch_ends:
            self.clock.stopped = self.tally.is_over()
            if not self.clock.stopped:
                actors.meter.warm()

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
            self.actors.begin_group()

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
            self.actors.visible = self.version
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
            self._train(self._stages(), advanced)

        def advanced() -> None:
            self.version += 1
            learned()

        start()

    def _kept_step(self) -> None:
        """A batch is full with the first groups that end; the others stand still while the learner
        works, and go on under its weights."""

        def full() -> None:
            self.actors.stop(AT_ONCE)
            self._train(self._stages(), trained)

        def trained() -> None:
            self.clock.after(self.load.sync.seconds + self.load.switch_s, over)

        def over() -> None:
            self.version += 1
            self.actors.visible = self.version
            self.step_ends()
            self.actors.go_on()
            self._top_up()
            self._kept_step()

        self.take(self.per_step, full)

    def _top_up(self) -> None:
        wanted = math.ceil(self.load.in_flight * self.per_step)
        while self.actors.begun - len(self.ends) * self.per_step < wanted:
            self.actors.begin_group()

    def _async_step(self) -> None:
        sync = self.load.sync

        def learned() -> None:
            self._send()
            self.clock.after(sync.seconds * (1 - sync.overlap), ended)

        def ended() -> None:
            self.step_ends()
            self.learn(learned)

        self.learn(learned)

    def _send(self) -> None:
        """The newest version goes to the actors, once the one before has arrived: two that travel
        beside each other would share the link."""
        if self.sent > self.actors.visible or self.sent == self.version:
            return
        self.sent = self.version
        self.actors.stop(self.load.weights_stop)

        def arrived() -> None:
            self.actors.visible = self.sent
            self.actors.go_on()
            self._admit()
            self._send()

        self.clock.after(self.load.sync.seconds, arrived)

    def _admit(self) -> None:
        room = (self.actors.visible + self.lag_bound + 1) * self.per_step
        if self.load.in_batches:
            if self.on_way or self.actors.begun + self.per_step > room:
                return
            room = self.actors.begun + self.per_step
        while self.actors.begun < room:
            self.on_way += 1
            self.actors.begin_group()

    # --- what came of it ---

    def result(self) -> Replay:
        self.run()
        load = self.load
        counted, lags = self.tally.counted()
        steps = len(counted) - 1
        lengths = np.diff([mark[0] for mark in counted])
        step_s, rollout_s, waits_s, reward_s, stale = (
            (b - a) / steps for a, b in zip(counted[0], counted[-1], strict=True)
        )
        stages = {stage: load.mean_s(stage) for stage in load.serial_s}
        stages[Stage.ROLLOUT] = rollout_s
        stages[Stage.REWARD] = reward_s / load.reward_workers
        stages[Stage.REFERENCE] = stages.get(Stage.REFERENCE, 0.0) + load.reference_s
        stages[Stage.SYNC], stages[Stage.SWITCH] = load.sync.seconds, load.switch_s
        idle_s = max(0.0, step_s - rollout_s)
        total = lags.total()
        return Replay(
            step_s=step_s,
            steps_s=tuple(float(x) for x in lengths),
            stages_s={stage: seconds for stage, seconds in stages.items() if seconds > 0},
            learner_waits_s=waits_s,
            rollout_idle_s=idle_s,
            stale_share=stale / (stale + self.per_step) if stale else 0.0,
            lags={lag: n / total for lag, n in sorted(lags.items())} if total else {},
            beside=self.actors.meter.beside(),
        )


# --- which workloads are the same to a replay: levers, constants and walls ask for many that are

NOT_PLAYED = frozenset({
    "devices", "device_kind", "one_more", "useful_tokens", "useful_share",
    "usd_per_device_hour", "measured_step_s", "steps", "step_deviation", "model_error",
    "failed_share", "parameters", "rests_on", "instead",
    "bound_stated",
})  # fmt: skip
"""Figures of a workload that no replay reads. One that is not here makes workloads differ."""

_PLAYED = tuple(
    one.name for one in fields(Workload) if one.name not in {*NOT_PLAYED, "batches", "serial_s"}
)


@dataclass(frozen=True)
class Played:
    """A workload that equals all of which a replay plays the same."""

    what: tuple[object, ...]
    load: Workload = field(compare=False, repr=False)


def played(load: Workload) -> Played:
    """The workload as what is played of it."""
    figures = (getattr(load, name) for name in _PLAYED)
    return Played((*figures, *load.serial_s.items(), *map(_content, load.batches)), load)


def _content(batch: Batch) -> tuple[bytes, tuple[int, ...]]:
    """Equal for batches of equal samples, whichever arrays hold them."""
    digest = blake2b(digest_size=16)
    for column in (batch.tokens, batch.env_s, batch.verdict_s):
        digest.update(column.tobytes())
    return digest.digest(), batch.group
