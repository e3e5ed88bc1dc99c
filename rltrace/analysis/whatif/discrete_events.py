"""Discrete events of a replay: a clock, engines, and pools of servers."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from rltrace.analysis.whatif.workload import EngineModel, SampleBatch, StepWorkload
from rltrace.trace.vocabulary import Stage

Action = Callable[[], None]

_DRAFT_ALONE, _DRAFT_LIMIT, _DRAFT_AT_LIMIT = 3.62, 32.0, 1.70
# Speculative decoding by running sequences: TLT (arXiv 2511.16665), as reported by others.


class EventClock:
    def __init__(self) -> None:
        self.now = 0.0
        self.stopped = False
        self._number = 0
        self._events: list[tuple[float, int, Action]] = []
        self.at_last: list[Action] = []  # once all has happened by the action that runs now

    def after(self, seconds: float, action: Action) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, action))

    def run(self) -> None:
        """Until nothing is left or somebody has stopped it."""
        events, last, pop = self._events, self.at_last, heapq.heappop
        while not self.stopped:
            for action in last:
                action()
            last.clear()
            if not events:
                break
            self.now, _, action = pop(events)
            action()


class Meter:
    """How long each kind of work went on, by however many workers, and how long beside another."""

    def __init__(self, clock: EventClock) -> None:
        self.clock = clock
        self.since = 0.0
        # By the stage's code: a list is found in less time than a stage is hashed.
        self.working = [0] * len(Stage)
        self.going: list[Stage] = []
        self.total_s, self._alone_s, self._beside_s = ([0.0] * len(Stage) for _ in range(3))

    def change(self, kind: Stage, by: int) -> None:
        """So many more workers do this kind of work from now on."""
        working = self.working[kind] = self.working[kind] + by
        if not working:
            self._until_now()
            self.going.remove(kind)
        elif working == by:
            self._until_now()
            self.going.append(kind)

    def busy_s(self, kind: Stage) -> float:
        self._until_now()
        return self.total_s[kind]

    def warm(self) -> None:
        """What was beside what counts from now on."""
        self._until_now()
        self._alone_s, self._beside_s = ([0.0] * len(Stage) for _ in range(2))

    def beside(self) -> dict[Stage, float]:
        """The part of each kind's time during which another kind went on."""
        self._until_now()
        times_s = zip(Stage, self._alone_s, self._beside_s, strict=True)
        return {kind: both / (alone + both) for kind, alone, both in times_s if alone + both > 0}

    def _until_now(self) -> None:
        passed, self.since = self.clock.now - self.since, self.clock.now
        company = self._beside_s if len(self.going) > 1 else self._alone_s
        for kind in self.going:
            self.total_s[kind] += passed
            company[kind] += passed


class Worker:
    """One engine: its running sequences advance at one pace, which depends on how many they are;
    others wait for a free slot. One that goes on after a tool has the next, before all that have
    not begun: what it waits is part of the pace that was measured. `width` workers count as one;
    `known` are sequences that run, hold a slot or wait, by worker: this is `number`."""

    def __init__(
        self, clock: EventClock, engine: EngineModel, meter: Meter, known: list[int], width: float,
        number: int,
    ) -> None:  # fmt: skip
        self.clock, self.engine, self.width, self.meter = clock, engine, width, meter
        self._known, self._number = known, number
        self.works = False
        self.slots = max(1.0, min(engine.slots, engine.room) * width)
        self.running: list[tuple[float, int, Action, bool]] = []  # by the token at which they end
        self.waiting: deque[tuple[float, Action, Action, bool]] = deque()
        self.going_on: deque[tuple[float, Action, Action, bool]] = deque()
        self.held = 0  # slots of sequences whose tools work
        self.token = 0.0  # tokens that a sequence which began with the clock would have
        self.since = 0.0
        self.paused = False
        self._order = 0
        self._pace_s = 0.0  # seconds a token as long as nothing changes; 0: nothing advances
        self._due = math.inf  # when the next of them ends
        self._unplanned = False

    def submit(self, tokens: float, begun: Action, ended: Action, calls: bool = False) -> None:
        """The actions come as it begins and ends, which is where it `calls` a tool or is over."""
        self._known[self._number] += 1
        self.waiting.append((tokens, begun, ended, calls))
        if len(self.running) + self.held < self.slots and not self.paused:
            self._advance()
            self._fill()

    def go_on(self, tokens: float, ended: Action) -> None:
        """A sequence that has begun before has so many more tokens."""
        self._advance()
        self.held -= self.engine.tools_hold
        self._known[self._number] += not self.engine.tools_hold
        self.going_on.append((tokens, lambda: None, ended, False))
        self._fill()

    def pause(self, paused: bool) -> None:
        if paused != self.paused:
            self._advance()
            self.paused = paused
            self._fill()

    def _advance(self) -> None:
        now = self.clock.now
        if now != self.since:
            if self._pace_s:
                self.token += (now - self.since) / self._pace_s
            self.since = now

    def _fill(self) -> None:
        while not self.paused and len(self.running) + self.held < self.slots:
            if not (queue := self.going_on or self.waiting):
                break
            tokens, begun, ended, calls = queue.popleft()
            self._order += 1
            heapq.heappush(self.running, (self.token + tokens, self._order, ended, calls))
            begun()
        self._changed()

    def _changed(self) -> None:
        if not self._unplanned:  # one action begins and ends many sequences
            self._unplanned = True
            self.clock.at_last.append(self._plan)

    def _plan(self) -> None:
        """The pace from now on, and when the next sequence ends."""
        self._unplanned = False
        works = bool(self.running) and not self.paused
        if works != self.works:
            self.meter.change(Stage.ROLLOUT, works - self.works)
            self.works = works
        if not works:
            self._pace_s, self._due = 0.0, math.inf
            return
        engine, running = self.engine, len(self.running) / self.width
        pace = engine.token_s + engine.shared_token_s * running
        if engine.drafting:
            pace /= draft_speed(running * engine.stands_for, engine.drafting)
        self._pace_s = pace
        left = max(0.0, self.running[0][0] - self.token) * pace
        due = self.clock.now + left
        if due != self._due:
            self._due = due
            self.clock.after(left, self._end)

    def _end(self) -> None:
        if self.clock.now != self._due:
            return  # something has changed since
        self._due = math.inf
        self._advance()
        self.token = max(self.token, self.running[0][0])
        ended = []
        while self.running and self.running[0][0] <= self.token:
            _, _, action, calls = heapq.heappop(self.running)
            holds = calls and self.engine.tools_hold
            self.held += holds
            self._known[self._number] -= not holds
            ended.append(action)
        self._fill()
        for action in ended:
            action()


class Servers:
    """A pool of equal servers, first come first served."""

    def __init__(self, clock: EventClock, size: float, meter: Meter, kind: Stage) -> None:
        self.clock, self.meter, self.kind = clock, meter, kind
        self.free = size
        self.busy_s = 0.0
        self.waiting: deque[tuple[float, Action]] = deque()

    def serve(self, seconds: float, done: Action) -> None:
        if seconds <= 0:
            done()
            return
        self.waiting.append((seconds, done))
        self._next()

    def _next(self) -> None:
        while self.free >= 1 and self.waiting:
            seconds, done = self.waiting.popleft()
            self.free -= 1
            self.busy_s += seconds
            self.meter.change(self.kind, 1)
            self.clock.after(seconds, partial(self._done, done))

    def _done(self, done: Action) -> None:
        self.free += 1
        self.meter.change(self.kind, -1)
        done()
        self._next()


def draft_speed(running: float, part: float) -> float:
    """How many times faster speculative decoding is with so many running sequences; `part` of the
    published gain comes. Beyond the limit the arithmetic of the drafts costs what they save."""
    if not part or running > _DRAFT_LIMIT:
        return 1.0
    at = math.log2(max(running, 1.0)) / math.log2(_DRAFT_LIMIT)
    return 1 + part * (_DRAFT_ALONE + at * (_DRAFT_AT_LIMIT - _DRAFT_ALONE) - 1)


@dataclass
class ReplayedGroup:
    """A group on its way: samples that are not generated, samples without a verdict, seconds of the
    verdicts that wait to begin, and the version under which it began."""

    left: int
    unscored: int
    verdicts_s: list[float] = field(default_factory=list)
    version: int = -1


class Actors:
    """Workers that generate, servers that judge, and the pass of the reference behind them.

    `complete` is called with each group that has all its verdicts. `visible` is the policy version
    at the workers, `begun` how many groups have begun, `per_step` how many a learner step takes.
    """

    def __init__(
        self, workload: StepWorkload, clock: EventClock, complete: Callable[[ReplayedGroup], None]
    ) -> None:
        self.load, self.clock, self._complete = workload, clock, complete
        self.meter = Meter(clock)
        engine = workload.engine
        widths = [engine.workers] if engine.pooled else [1.0] * round(engine.workers)
        self._known = [0] * len(widths)
        given = clock, engine, self.meter, self._known
        self.workers = [Worker(*given, width, number) for number, width in enumerate(widths)]
        self.rewards = Servers(clock, workload.reward_workers, self.meter, Stage.REWARD)
        self.reference = Servers(clock, 1, self.meter, Stage.REFERENCE)
        self.groups = [_groups(batch) for batch in workload.batches]
        self.per_step = len(self.groups[0])
        self.visible = 0
        self.begun = 0
        self.generated: list[ReplayedGroup] = []  # whose verdicts wait for the rest of the batch
        self.generating = 0  # groups
        self.scoring = workload.scoring
        if workload.streams and not workload.in_batches and self.scoring == "batch":
            self.scoring = "group"

    def begin_group(self) -> None:
        """On the worker with the least to do; or each sample is, where groups are spread."""
        batch, number = divmod(self.begun, self.per_step)
        self.begun += 1
        self.generating += 1
        groups = self.groups[batch % len(self.groups)]
        samples = groups[number % len(groups)]
        group = ReplayedGroup(len(samples), len(samples))
        worker = self._least_busy()
        for tokens, env_s, verdict_s in samples:
            if self.load.spread:
                worker = self._least_busy()
            self._begin_sample(worker, group, tokens, env_s, verdict_s)

    def pause(self, paused: bool) -> None:
        for worker in self.workers:
            worker.pause(paused)

    def _least_busy(self) -> Worker:
        return self.workers[self._known.index(min(self._known))]

    def _begin_sample(
        self, worker: Worker, group: ReplayedGroup, tokens: float, env_s: float, verdict_s: float
    ) -> None:
        def begun() -> None:
            if group.version < 0:
                group.version = self.visible

        def ended() -> None:
            self._sample_ended(group, verdict_s)

        if not env_s > 0:
            worker.submit(tokens, begun, ended)
            return

        def called() -> None:
            self.clock.after(env_s, lambda: worker.go_on(tokens / 2, ended))

        worker.submit(tokens / 2, begun, called, calls=True)  # the tool answers halfway

    def _sample_ended(self, group: ReplayedGroup, verdict_s: float) -> None:
        group.left -= 1
        group.verdicts_s.append(verdict_s)
        self.generating -= group.left == 0
        if self.scoring == "sample" or not group.left:
            self.generated.append(group)
        if self.scoring != "batch" or not self.generating:
            complete, self.generated = self.generated, []
            for one in complete:
                self._judge(one)

    def _judge(self, group: ReplayedGroup) -> None:
        def done() -> None:
            group.unscored -= 1
            if not group.unscored:
                share_s = self.load.reference_s / self.per_step
                self.reference.serve(share_s, lambda: self._complete(group))

        verdicts_s, group.verdicts_s = group.verdicts_s, []
        for seconds in verdicts_s:
            self.rewards.serve(seconds, done)


def _groups(batch: SampleBatch) -> list[list[tuple[float, float, float]]]:
    """The samples of each group: tokens, seconds of tools, seconds of the verdict."""
    groups: dict[int, list[tuple[float, float, float]]] = {}
    columns = batch.tokens.tolist(), batch.env_s.tolist(), batch.verdict_s.tolist()
    for group, *sample in zip(batch.group, zip(*columns, strict=True), strict=True):
        groups.setdefault(group, []).extend(sample)
    return list(groups.values())
