"""What the start of an event had to wait for, and what of it came last.

A start can need three kinds of things:

- *data*: a verdict needs its sample (or its group, or the batch), a learner's step the samples that
  it used, a worker the weights that it takes in from those who had them;
- *room*: a slot of its engine or its verifier where all are taken, and its turn: a process does one
  thing after the other, and so does the learner with all its ranks;
- *rest*: that all actors have finished (or the learner has, or the weights have arrived). It counts
  only where they stand still at that moment (what goes on held nothing up) and nearly always do
  when something of this kind starts (once may be chance).

Of these the one that ended last let the event start.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.timeline.interval_lookup import Lane, Lanes
from rltrace.analysis.timeline.intervals import Ints
from rltrace.analysis.timeline.path_events import EventKind, Events, Followed, UpdateEvents
from rltrace.analysis.timeline.stage_chains import MOVES, Chain
from rltrace.trace.vocabulary import Stage

_HABIT = 0.9

_LEARNS, _SENDS, _GENERATES, _TAKES = range(4)  # kinds of what starts

Needed = Iterator[tuple[int, str]]  # place in the events, and why


class Gates:
    """What each event of a run needed. Places are those in the events, -1 is none."""

    def __init__(
        self, analysis: RunAnalysis, events: Events, followed: Followed, updates: UpdateEvents
    ) -> None:
        self.events, self.followed, self.starts = events, followed, analysis.steps.starts_ns
        side_of = analysis.breakdown.side_of
        places, samples, verdicts, rows = map(events.of, EventKind)
        stage, process = events.stage[places], events.process[places]
        code = np.array([side_of.get(one, -1) for one in Stage], np.int64)
        chain = np.where(stage == Stage.OTHER, -1, code[stage])
        trainers = np.unique(process[stage == Stage.TRAIN])
        at_learner = np.isin(process, trainers)
        in_rows = [Stage.ROLLOUT, Stage.ENV, *([Stage.REWARD] if len(verdicts) else [])]
        moves = chain == Chain.WEIGHTS
        self._role = np.full(len(events.start_ns), -1, np.int64)
        self._role[places[(chain == Chain.LEARNER) | moves & at_learner]] = Chain.LEARNER
        self._role[places[moves & ~at_learner]] = Chain.WEIGHTS
        self._role[places[(chain == Chain.ACTORS) & ~np.isin(stage, in_rows)]] = Chain.ACTORS
        source = (updates.is_source == 1) | np.isin(updates.process, trainers)
        self._role[rows] = np.where(source, Chain.LEARNER, Chain.WEIGHTS)
        self._sends = (self._role == Chain.LEARNER) & np.isin(events.stage, MOVES)
        mine = places[self._role[places] == Chain.LEARNER]
        taking = places[self._role[places] == Chain.WEIGHTS]
        after = places[self._role[places] == Chain.ACTORS]
        self.learner, self.weights = self._lane(mine), self._lane(taking)
        self.actors = self._lane(np.concatenate([samples, verdicts, after]))
        self.generation = self._lane(samples)
        self._judges_at_rest = self._waits_for(self.generation, verdicts)
        self._finished = {
            self.learner: "the learner had finished",
            self.actors: "the actors had finished",
            self.weights: "the weights had arrived",
        }
        self.slots = self._by_process(samples)
        self.servers = self._by_process(verdicts)
        self.loads, self.posts = self._by_process(taking), self._by_process(after)
        self._version = np.full(len(events.start_ns), -1, np.int64)
        self._version[rows] = updates.version
        self._versions = Lanes(self._version, events.start_ns, events.end_ns, rows)
        self.arrivals = self._lane(rows[self._role[rows] == Chain.WEIGHTS])
        self._rows = self._by_process(rows)
        self._batches(followed, after)
        sent = self._sends[mine]
        self._rests = {
            kind: tuple(lane for lane in lanes if self._waits_for(lane, places))
            for kind, places, lanes in (
                (_LEARNS, mine[~sent], (self.actors, self.weights)),
                (_SENDS, mine[sent], (self.actors, self.weights)),
                (_GENERATES, samples, (self.learner, self.weights)),
                (_TAKES, taking, (self.actors, self.learner, self.weights)),
            )
        }

    def _waits_for(self, lane: Lane, places: Ints) -> bool:
        """Whether the lane rests when one of these starts, nearly always."""
        resting = lane.rests_at(self.events.start_ns[places])
        return bool(len(places)) and float(resting.mean()) >= _HABIT

    def _lane(self, places: Ints) -> Lane:
        return Lane(self.events.start_ns, self.events.end_ns, places)

    def _by_process(self, places: Ints) -> Lanes:
        return Lanes(self.events.process, self.events.start_ns, self.events.end_ns, places)

    def _batches(self, followed: Followed, after: Ints) -> None:
        """When the samples of each step were ready, and by what event: their verdict or generation,
        then what else the actors did to them: of each stage without rows of its own the first
        stretch that began once they were judged."""
        events, samples = self.events, self.events.of(EventKind.SAMPLE)
        verdict = events.first[EventKind.VERDICT] + followed.verdict
        made = np.where(followed.verdict >= 0, verdict, samples)
        judged = events.end_ns[made]
        ready, by = judged.copy(), made.copy()
        for stage in (Stage.REWARD, Stage.REFERENCE, Stage.LOGPROB, Stage.VALUE):
            mine = after[events.stage[after] == stage]
            mine = mine[np.argsort(events.start_ns[mine], kind="stable")]
            at = np.searchsorted(events.start_ns[mine], ready)
            found = at < len(mine)
            by[found] = mine[at[found]]
            ready[found] = events.end_ns[by[found]]
        self._generated = _InOrder(followed, followed.samples.end_ns, samples)
        self._judged = _InOrder(followed, judged, made)
        self._ready = _InOrder(followed, ready, by)

    def before_end(self, moment: int) -> tuple[int, str]:
        return self._last(self._for_learner(_LEARNS, moment), moment)

    def before(self, place: int) -> tuple[int, str]:
        moment = int(self.events.start_ns[place])
        kind, role = self.events.kind(place), self._role[place]
        if kind == EventKind.SAMPLE:
            needed = self._for_sample(place, moment)
        elif kind == EventKind.VERDICT:
            needed = self._for_verdict(place, moment)
        elif role == Chain.WEIGHTS:
            needed = self._for_weights(place, moment)
        elif role == Chain.ACTORS:
            needed = self._for_rest_of_actors(place, moment)
        else:
            needed = self._for_learner(_SENDS if self._sends[place] else _LEARNS, moment)
        return self._last(needed, moment)

    def _last(self, needed: Needed, moment: int) -> tuple[int, str]:
        """Of what is needed, that which ended last; what goes on at the moment ends with it."""
        best, why, latest = -1, "", -1
        for place, because in needed:
            if place < 0 or self.events.start_ns[place] >= moment:
                continue
            end = min(int(self.events.end_ns[place]), moment)
            if end > latest:
                best, why, latest = place, because, end
        return best, why

    def _step(self, moment: int) -> int:
        return int(np.searchsorted(self.starts, moment, side="right")) - 1

    def _at_rest(self, kind: int, moment: int) -> Needed:
        for lane in self._rests[kind]:
            if lane.busy_since(moment) == moment:
                yield lane.ended(moment), self._finished[lane]

    def _for_learner(self, kind: int, moment: int) -> Needed:
        step = self._step(moment)
        ready = self._ready.last(step, moment)
        if ready < 0:  # it takes them before they are judged
            ready = self._generated.last(step, moment)
        yield ready, "the last sample of the step"
        yield self.learner.ended(moment), "the learner's turn"
        yield from self._at_rest(kind, moment)

    def _for_sample(self, place: int, moment: int) -> Needed:
        process = int(self.events.process[place])
        slots = self.slots[process]
        if slots.is_full(moment):
            yield slots.ended(moment), "a slot of the engine"
        else:  # it was let in by a version that had arrived, where the lag is bounded
            yield self.arrivals.ended(moment), self._finished[self.weights]
        if process in self.loads:
            yield self.loads[process].ended(moment), self._finished[self.weights]
        yield from self._at_rest(_GENERATES, moment)
        since = self.actors.busy_since(moment)  # those that began before began together with it
        yield self.actors.ended(since), self._finished[self.actors]
        yield from self._at_rest(_GENERATES, since)

    def _for_verdict(self, place: int, moment: int) -> Needed:
        sample = int(self.followed.verdicts.sample[place - self.events.first[EventKind.VERDICT]])
        if sample >= 0:
            awaited = int(self.followed.awaited[sample])
            if self.followed.samples.end_ns[awaited] > moment:
                awaited = sample
            first = self.events.first[EventKind.SAMPLE]
            yield first + awaited, f"the {self.followed.scored_by} to judge"
        if self._judges_at_rest:
            yield self.generation.ended(moment), "all generation had ended"
        server = self.servers[int(self.events.process[place])]
        if server.is_full(moment):
            yield server.ended(moment), "room at the verifier"

    def _for_rest_of_actors(self, place: int, moment: int) -> Needed:
        yield self._judged.last(self._step(int(self.events.end_ns[place])), moment), "its samples"
        yield self.posts[int(self.events.process[place])].ended(moment), "its turn"

    def _for_weights(self, place: int, moment: int) -> Needed:
        process = int(self.events.process[place])
        row = place
        if self.events.kind(place) == EventKind.PIECE:  # of an update, which has a row
            lane = self._rows.get(process)
            row = -1 if lane is None else lane.open(int(self.events.end_ns[place]) - 1)
        if row >= 0:
            others = self._versions[int(self._version[row])]
            yield others.ended(moment), "its version"
            if others.ended(moment) < 0:
                yield others.open(moment), "its version, as it came"
        else:
            yield self.learner.ended(moment), "the learner's weights"
        if process in self.loads:
            yield self.loads[process].ended(moment), "its turn"
        if process in self.slots and self.slots[process].busy_since(moment) == moment:
            yield self.slots[process].ended(moment), "the engine had drained"
        yield from self._at_rest(_TAKES, moment)


class _InOrder:
    """When samples of each step were ready, in order, each with the event that ended then."""

    def __init__(self, followed: Followed, moment: Ints, by: Ints) -> None:
        self._step, self._sample = followed.used_step, followed.used_sample
        self._moment, self._by = moment, by
        self._sorted: dict[int, tuple[Ints, Ints]] = {}  # of the steps that were asked for

    def last(self, step: int, moment: int) -> int:
        """The event by which the last sample of the step that was ready at the moment was."""
        if step not in self._sorted:
            first, until = np.searchsorted(self._step, [step, step + 1])
            samples = self._sample[first:until]
            samples = samples[np.argsort(self._moment[samples], kind="stable")]
            self._sorted[step] = self._moment[samples], self._by[samples]
        moments, by = self._sorted[step]
        at = int(np.searchsorted(moments, moment, side="right")) - 1
        return int(by[at]) if at >= 0 else -1
