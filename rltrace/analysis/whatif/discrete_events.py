"""Discrete events of a replay: a clock, engines, and pools of servers."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from operator import itemgetter

from rltrace.analysis.whatif.workload import AT_ONCE, EngineModel, SampleBatch, StepWorkload
from rltrace.trace.vocabulary import Stage

Action = Callable[[], None]


class EventClock:
    def __init__(self) -> None:
        self.now = 0.0
        self.stopped = False
        self._numbers = count()
        self._events: list[tuple[float, int, Action]] = []
        self.at_last: list[Action] = []  # once all has happened by the action that runs now

    def after(self, seconds: float, action: Action) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), action))

    def run(self) -> None:
        """Until nothing is left or somebody has stopped it."""
        events, last, pop = self._events, self.at_last, heapq.heappop
        while not self.stopped:
            if last:
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
    `number` is this one's place in `actors.known`."""

    def __init__(self, actors: Actors, width: float, number: int) -> None:
        self.actors, self.clock, self.meter = actors, actors.clock, actors.meter
        self.engine, self.width, self._number = actors.load.engine, width, number
        self.works = False
        self.slots = self.engine.slots_of(width)
        self.running: list[tuple[float, int, _Sequence]] = []  # by the token at which they end
        self.waiting: deque[tuple[float, _Sequence]] = deque()
        self.going_on: deque[tuple[float, _Sequence]] = deque()
        self.held = 0  # slots of sequences whose tools work
        self.most = 0  # sequences that had a slot at once
        self.token = 0.0  # tokens that a sequence which began with the clock would have
        self.since = 0.0
        self.paused = False
        self._order = 0
        self._pace_s = 0.0  # seconds a token as long as nothing changes; 0: nothing advances
        self._due = math.inf  # when the next of them ends
        self._unplanned = False

    def submit(self, sequences: Sequence[tuple[float, _Sequence]]) -> None:
        self.actors.known[self._number] += len(sequences)
        self.waiting.extend(sequences)
        if len(self.running) + self.held < self.slots and not self.paused:
            self._advance()
            self._fill()

    def go_on(self, tokens: float, sequence: _Sequence) -> None:
        """A sequence that has begun before has so many more tokens."""
        self._advance()
        self.held -= self.engine.tools_hold
        self.actors.known[self._number] += not self.engine.tools_hold
        self.going_on.append((tokens, sequence))
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
        running, room = self.running, self.slots - self.held
        while len(running) < room and (self.going_on or self.waiting) and not self.paused:
            tokens, sequence = (self.going_on or self.waiting).popleft()
            self._order += 1
            heapq.heappush(running, (self.token + tokens, self._order, sequence))
            if sequence[0].version < 0:
                sequence[0].version = self.actors.visible
        self.most = max(self.most, len(running) + self.held)
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
        pace = self._pace_s = self.engine.pace_s(len(self.running) / self.width)
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
        running, token = self.running, max(self.token, self.running[0][0])
        self.token = token
        ended = []
        while running and running[0][0] <= token:
            sequence = heapq.heappop(running)[2]
            holds = sequence[2] > 0 and self.engine.tools_hold
            self.held += holds
            self.actors.known[self._number] -= not holds
            ended.append(sequence)
        self._fill()
        for group, tokens, env_s, verdict_s in ended:
            if env_s > 0:  # it has called a tool, which answers halfway
                rest = group, 0.0, 0.0, verdict_s
                self.clock.after(env_s, partial(self.go_on, tokens / 2, rest))
            else:
                self.actors.sample_ended(group, verdict_s)


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
        if self.free >= 1:
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
        done()
        self._next()
        self.meter.change(self.kind, -1)  # last: who goes on has not stopped


@dataclass
class ReplayedGroup:
    """A group on its way: samples that are not generated, samples without a verdict, seconds of the
    verdicts that wait to begin, and the version under which it began."""

    left: int
    unscored: int
    verdicts_s: list[float] = field(default_factory=list)
    version: int = -1


_Sequence = tuple[ReplayedGroup, float, float, float]
"""A sample's group, tokens, seconds of tools (0 where none is to come), seconds of the verdict."""


class Actors:
    """Workers that generate, servers that judge, and the pass of the reference behind them.

    `complete` is called with each group that has all its verdicts. `visible` is the policy version
    at the workers, `begun` how many groups have begun, `per_step` how many a learner step takes;
    `known` are sequences that run, hold a slot or wait, by worker.
    """

    def __init__(
        self, workload: StepWorkload, clock: EventClock, complete: Callable[[ReplayedGroup], None]
    ) -> None:
        self.load, self.clock, self._complete = workload, clock, complete
        self.meter = Meter(clock)
        engine = workload.engine
        widths = engine.widths
        self.known = [0] * len(widths)
        self.workers = [Worker(self, width, number) for number, width in enumerate(widths)]
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
        # Nothing of such a batch but its groups' ends concerns anybody.
        self.closed = self.scoring == "batch" and workload.weights_stop != AT_ONCE
        self.closed &= not any(batch.env_s.any() for batch in workload.batches)
        self._judging: tuple[float, ClosedBatch] | None = None  # since when

    def begin_batch(self) -> None:
        """As many groups as a step takes, with nothing before them on its way."""
        load, first = self.load, self.begun % (self.per_step * len(self.groups))
        share_s, servers = load.reference_s / self.per_step, int(load.reward_workers)
        parts = load.batches, first, load.engine, load.spread, servers, load.judged_in_turn
        batch = closed_batch(*parts, share_s) if self.closed else None
        if batch is None:
            for _ in range(self.per_step):
                self.begin_group()
            return
        self.rewards.busy_s, self._judging = self.judged_s, (self.clock.now, batch)
        self.begun += self.per_step
        self.workers[0].most = max(self.workers[0].most, batch.most)
        for stage, begin_s, end_s in batch.busy_s:
            self.clock.after(begin_s, partial(self.meter.change, stage, 1))
            self.clock.after(end_s, partial(self.meter.change, stage, -1))
        for end_s in batch.complete_s:
            group = ReplayedGroup(0, 0, version=self.visible)
            self.clock.after(end_s, partial(self._complete, group))

    @property
    def judged_s(self) -> float:
        """Seconds of the verdicts that have begun."""
        if self._judging is None:
            return self.rewards.busy_s
        since, batch = self._judging
        begun = bisect_left(batch.verdicts_begin_s, self.clock.now - since)
        return self.rewards.busy_s + batch.verdicts_s[begun]

    def begin_group(self) -> None:
        """On the worker with the least to do; or each sample is, where groups are spread."""
        batch, number = divmod(self.begun, self.per_step)
        self.begun += 1
        self.generating += 1
        groups = self.groups[batch % len(self.groups)]
        samples = groups[number % len(groups)]
        group = ReplayedGroup(len(samples), len(samples))
        # Of tokens, seconds of tools, which are called halfway, and seconds of the verdict.
        made = [(one[0] / (2 if one[1] > 0 else 1), (group, *one)) for one in samples]
        for some in ([one] for one in made) if self.load.spread else [made]:
            self._least_busy().submit(some)

    def pause(self, paused: bool) -> None:
        for worker in self.workers:
            worker.pause(paused)

    @property
    def most_at_once(self) -> float:
        """The most sequences of a worker that others had to have a slot beside."""
        return max((worker.most - 1) / worker.width for worker in self.workers)

    def _least_busy(self) -> Worker:
        return self.workers[self.known.index(min(self.known))]

    def sample_ended(self, group: ReplayedGroup, verdict_s: float) -> None:
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
        def done(verdicts: int) -> None:
            group.unscored -= verdicts
            if not group.unscored:
                share_s = self.load.reference_s / self.per_step
                self.reference.serve(share_s, lambda: self._complete(group))

        verdicts_s, group.verdicts_s = group.verdicts_s, []
        for call_s in _calls(verdicts_s, self.load.judged_in_turn):
            self.rewards.serve(sum(call_s), partial(done, len(call_s)))


@dataclass(frozen=True)
class ClosedBatch:
    """A batch that begins at once and waits for no slot and no tool, in seconds since then: when
    each group is complete, and when stages work for it. `verdicts_s` are sums of the verdicts that
    have begun before each of `verdicts_begin_s`, and of all. `most` are sequences on a worker."""

    complete_s: list[float]
    busy_s: list[tuple[Stage, float, float]]
    verdicts_begin_s: list[float]
    verdicts_s: list[float]
    most: int


@lru_cache(maxsize=256)
def closed_batch(
    batches: tuple[SampleBatch, ...], first: int, engine: EngineModel, spread: bool, servers: int,
    in_turn: bool, pass_s: float,
) -> ClosedBatch | None:  # fmt: skip
    """The events of the groups from the `first` of all batches on, by arithmetic; None where
    sequences have to wait for a slot."""
    widths, per_step = engine.widths, len(_groups(batches[0]))
    known = [0] * len(widths)
    sequences: list[list[tuple[float, tuple[int, int], float]]] = [[] for _ in widths]
    for batch, nth in (divmod(n, per_step) for n in range(first, first + per_step)):
        groups = _groups(batches[batch % len(batches)])
        worker = known.index(min(known))
        for tokens, _, verdict_s in groups[nth % len(groups)]:
            if spread:
                worker = known.index(min(known))
            known[worker] += 1
            sequences[worker].append((tokens, (batch, nth), verdict_s))
    if any(n - 1 >= engine.slots_of(width) for n, width in zip(known, widths, strict=True)):
        return None
    ended = []
    for width, of_worker in zip(widths, sequences, strict=True):
        token = now = 0.0
        for i, (tokens, group, verdict_s) in enumerate(sorted(of_worker, key=itemgetter(0))):
            now += max(0.0, tokens - token) * engine.pace_s((len(of_worker) - i) / width)
            token = max(token, tokens)
            ended.append((now, group, verdict_s))
    verdicts: dict[tuple[int, int], list[float]] = {}
    for _, group, verdict_s in sorted(ended, key=itemgetter(0)):
        of_group = verdicts[group] = verdicts.pop(group, [])  # last: whose last has ended
        of_group.append(verdict_s)
    generated_s = max(ended)[0]
    free, begin_s, sums_s, scored_s = [generated_s] * servers, [], [0.0], []
    for of_group in verdicts.values():
        scored_s.append(generated_s)
        for seconds in map(sum, _calls(of_group, in_turn)):
            if seconds > 0:
                begin_s.append(heapq.heappop(free))
                sums_s.append(sums_s[-1] + seconds)
                heapq.heappush(free, begin_s[-1] + seconds)
                scored_s[-1] = max(scored_s[-1], begin_s[-1] + seconds)
    busy_s = [(Stage.ROLLOUT, 0.0, generated_s), (Stage.REWARD, generated_s, max(free))]
    complete_s = sorted(scored_s)
    if pass_s > 0:
        end_s = 0.0
        for i, scored in enumerate(complete_s):
            begin, end_s = max(scored, end_s), max(scored, end_s) + pass_s
            complete_s[i] = end_s
            busy_s.append((Stage.REFERENCE, begin, end_s))
    return ClosedBatch(complete_s, busy_s, begin_s, sums_s, max(known))


def _calls(verdicts_s: list[float], in_turn: bool) -> list[list[float]]:
    """The verdicts of a group, by the calls that make them."""
    return [verdicts_s] if in_turn and verdicts_s else [[seconds] for seconds in verdicts_s]


@lru_cache(maxsize=64)
def _groups(batch: SampleBatch) -> list[list[tuple[float, float, float]]]:
    """The samples of each group: tokens, seconds of tools, seconds of the verdict."""
    groups: dict[int, list[tuple[float, float, float]]] = {}
    columns = batch.tokens.tolist(), batch.env_s.tolist(), batch.verdict_s.tolist()
    for group, *sample in zip(batch.group, zip(*columns, strict=True), strict=True):
        groups.setdefault(group, []).extend(sample)
    return list(groups.values())
