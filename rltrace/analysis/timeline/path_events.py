"""Everything that can be on the critical path, in one set of columns.

That is stretches of work of the processes, generations of samples, verdicts on them, and shares in
weight updates. Samples are followed from generation over their verdicts to the step that used them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from rltrace.analysis.timeline.interval_lookup import TIMED, alike, columns
from rltrace.analysis.timeline.intervals import Columns, Intervals, Ints, joined, of_spans, union
from rltrace.analysis.timeline.process_intervals import CODES, Activity
from rltrace.analysis.timeline.steps import Steps
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.vocabulary import Fate, Stage, SyncRole

_QUEUED = 5.0  # times the usual prefill: the rest of the time to the first token was a queue
_NEARLY_ALL = 0.99
_ENDED = "start_ns > 0 and end_ns >= start_ns"
_NO_ID = np.iinfo(np.int64).min  # below any id; -1 is not, as half of them are negative


@dataclass(frozen=True)
class EndedSamples(Columns):
    """A place for each trajectory that ended. It had its slot at `begin_ns`: its start, or the
    first token less a usual prefill where that is much later."""

    process: Ints
    group: Ints
    start_ns: Ints
    begin_ns: Ints
    end_ns: Ints
    env_ns: Ints


@dataclass(frozen=True)
class Verdicts(Columns):
    """A place for each verdict; `sample` is the place of what was judged (-1: unknown)."""

    sample: Ints
    process: Ints
    start_ns: Ints
    end_ns: Ints


@dataclass(frozen=True)
class Followed:
    """`verdict` is the last of each sample (-1: none) and `awaited` the sample whose end it had to
    wait for: its own, or the last of its group or batch, as `scored_by` says ("sample", "group" or
    "batch"). `used_step` (a place in `Steps.windows`) used `used_sample`, in order of the step;
    `linked_share` of the uses had their generation recorded."""

    samples: EndedSamples
    verdicts: Verdicts
    verdict: Ints
    awaited: Ints
    scored_by: str
    used_step: Ints
    used_sample: Ints
    linked_share: float

    def within(self, since_ns: int, until_ns: int, steps: range) -> Followed:
        """What of it overlaps this time, or was used in these steps. A sample that waited for one
        which is not among these waited for itself."""
        samples, verdicts = self.samples, self.verdicts
        used = (self.used_step >= steps.start) & (self.used_step < steps.stop)
        kept = (samples.start_ns <= until_ns) & (samples.end_ns >= since_ns)
        kept[self.used_sample[used]] = True
        of_sample = np.append(kept, False)[verdicts.sample]
        judged = of_sample | (verdicts.start_ns <= until_ns) & (verdicts.end_ns >= since_ns)
        kept[verdicts.sample[judged & (verdicts.sample >= 0)]] = True
        kept[self.awaited[kept]] = True
        used_at, judged_at, kept_at = map(np.flatnonzero, (kept[self.used_sample], judged, kept))
        sample = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)
        verdict = np.append(np.where(judged, np.cumsum(judged) - 1, -1), -1)
        awaited = sample[self.awaited[kept_at]]
        return Followed(
            samples.take(kept_at),
            replace(verdicts.take(judged_at), sample=sample[verdicts.sample[judged_at]]),
            verdict[self.verdict[kept_at]],
            np.where(awaited >= 0, awaited, np.arange(len(awaited))),
            self.scored_by,
            self.used_step[used_at],
            sample[self.used_sample[used_at]],
            self.linked_share,
        )


def follow(run: OpenedRun, steps: Steps) -> Followed:
    ids, samples = _samples(run)
    query = f"select trajectory, process, start_ns, end_ns from raw_rewards where {_ENDED}"
    trajectory, process, start, end = columns(run, query)
    verdicts = Verdicts(ids.find(trajectory), process, start, end)
    last = np.full(len(samples), -1, np.int64)
    order = np.argsort(verdicts.end_ns, kind="stable")
    order = order[verdicts.sample[order] >= 0]
    last[verdicts.sample[order]] = order
    step, sample, linked = _uses(run, steps, ids)
    batch = np.full(len(samples), -1, np.int64)
    batch[sample[::-1]] = step[::-1]
    awaited, scored_by = _awaited(samples, verdicts, batch)
    return Followed(samples, verdicts, last, awaited, scored_by, step, sample, linked)


@dataclass(frozen=True)
class _Ids:
    """Ids in order, and the place of the sample that has each."""

    ids: Ints
    places: Ints

    def find(self, wanted: Ints) -> Ints:
        """Places of the samples with these ids, -1 where there is none."""
        if not len(self.ids):
            return np.full(len(wanted), -1, np.int64)
        order = np.argsort(wanted)  # what is looked for in order is found in a tenth of the time
        at = np.empty(len(wanted), np.int64)
        at[order] = np.clip(np.searchsorted(self.ids, wanted[order]), 0, len(self.ids) - 1)
        return np.where((self.ids[at] == wanted) & (wanted != -1), self.places[at], -1)


def _samples(run: OpenedRun) -> tuple[_Ids, EndedSamples]:
    """A sample that several processes recorded lasts from the first row to the last."""
    figures = 'trajectory, process, "group", start_ns, first_token_ns, end_ns, env_ns'
    query = f"select {figures} from raw_grouped_trajectories where {_ENDED}"
    ids, process, group, start, first, end, env = columns(run, query)
    order = np.lexsort((end, ids))
    ids, at = ids[order], order
    new = np.append(True, (ids[1:] != ids[:-1]) | (ids[1:] == -1))[: len(ids)]
    if not new.all():
        process, group, start, first, end, env = (
            column[order] for column in (process, group, start, first, end, env)
        )
        begins = np.flatnonzero(new)
        lasts = np.append(begins[1:], len(ids)) - 1
        start = np.minimum.reduceat(start, begins)
        first = np.maximum.reduceat(first, begins)
        env = np.maximum.reduceat(env, begins)
        known = np.maximum.reduceat(np.where(group == -1, _NO_ID, group), begins)
        group = np.where(known == _NO_ID, -1, known)
        ids, process, end = ids[lasts], process[lasts], end[lasts]
        at = np.arange(len(ids))
    begin, env = _begin(process, start, first, end), np.clip(env, 0, end - start)
    return _Ids(ids, at), EndedSamples(process, group, start, begin, end, env)


def _begin(process: Ints, start: Ints, first: Ints, end: Ints) -> Ints:
    begin = start.copy()
    known = np.flatnonzero((first > start) & (first <= end))
    for _, part in alike(process[known]):
        mine = known[part]
        usual = int(np.quantile(first[mine] - start[mine], 0.1))
        queued = mine[first[mine] - start[mine] > _QUEUED * usual]
        begin[queued] = first[queued] - usual
    return begin


def _uses(run: OpenedRun, steps: Steps, ids: _Ids) -> tuple[Ints, Ints, float]:
    """`(step, sample, linked share)`. A use is of the step that it names, where just one has that
    number, else of that in which it was booked. Nobody waits for what was filtered."""
    named = f"time_ns > 0 and trajectory <> -1 and fate <> {int(Fate.FILTERED)}"
    query = f"select trajectory, step, time_ns from raw_uses where {named}"
    trajectory, number, time = columns(run, query)
    if not len(trajectory) or not steps.windows:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), 0.0
    numbers = np.array([window.step for window in steps.windows], np.int64)
    names, first, times = np.unique(numbers, return_index=True, return_counts=True)
    at = np.clip(np.searchsorted(names, number), 0, len(names) - 1)
    is_named = (names[at] == number) & (times[at] == 1)
    place = np.where(is_named, first[at], steps.places_at(time))
    sample = ids.find(trajectory)
    kept = np.flatnonzero((sample >= 0) & (place >= 0))
    kept = kept[np.argsort(place[kept], kind="stable")]
    return place[kept], sample[kept], float((sample >= 0).mean())


def _awaited(samples: EndedSamples, verdicts: Verdicts, batch: Ints) -> tuple[Ints, str]:
    own, order = np.arange(len(samples)), np.argsort(samples.end_ns, kind="stable")
    judged = verdicts.sample >= 0
    sample, start = verdicts.sample[judged], verdicts.start_ns[judged]
    for name, key in (("batch", batch), ("group", samples.group)):
        values, number = np.unique(key, return_inverse=True)
        last = np.empty(len(values), np.int64)
        last[number[order]] = order  # of several the last stays
        last = np.where(key == -1, own, last[number])
        known = key[sample] != -1
        after = start >= samples.end_ns[last[sample]]
        if known.any() and after[known].mean() >= _NEARLY_ALL:
            return last, name
    return own, "sample"


@dataclass(frozen=True)
class UpdateEvents(Columns):
    """A place for each row of a weight update of known version."""

    process: Ints
    version: Ints
    is_source: Ints
    start_ns: Ints
    end_ns: Ints

    def within(self, since_ns: int, until_ns: int) -> UpdateEvents:
        return self.take((self.start_ns <= until_ns) & (self.end_ns >= since_ns))


class EventKind(IntEnum):
    PIECE, SAMPLE, VERDICT, UPDATE = range(4)


Known = tuple[int, int, int, int, int]
"""Kind, process, stage, begin and end of an event, by which another look at the run finds it."""


@dataclass(frozen=True)
class Events:
    """Those of each `EventKind` in turn, from a place in `first` on; `tools_ns` of a sample are
    tools."""

    start_ns: Ints
    end_ns: Ints
    process: Ints
    stage: Ints
    tools_ns: Ints
    first: tuple[int, ...]

    def kind(self, place: int) -> int:
        return bisect_right(self.first, place) - 1

    def of(self, kind: int) -> Ints:
        return np.arange(self.first[kind], self.first[kind + 1])

    def known(self, place: int) -> Known:
        process, stage = int(self.process[place]), int(self.stage[place])
        return self.kind(place), process, stage, int(self.start_ns[place]), int(self.end_ns[place])

    def find(self, event: Known) -> int:
        """The place of an event that other events knew, maybe cut off at its start; -1: none."""
        kind, process, stage, start_ns, end_ns = event
        here = slice(*self.first[kind : kind + 2])
        start, end = self.start_ns[here], self.end_ns[here]
        found = (self.process[here] == process) & (self.stage[here] == stage)
        if kind == EventKind.PIECE:
            found &= (start <= start_ns) & (end > start_ns)
        else:
            found &= (start == start_ns) & (end == end_ns)
        places = np.flatnonzero(found)
        return here.start + int(places[-1]) if len(places) else -1


def events_of(
    activity: Activity, since_ns: int, until_ns: int, followed: Followed, updates: UpdateEvents
) -> Events:
    """All in one, each kind nearly in the order of time: that is sorted sooner."""
    pieces = _pieces(activity, since_ns, until_ns)
    pieces = pieces.take(np.argsort(pieces.start, kind="stable"))
    samples, verdicts = followed.samples, followed.verdicts
    others = (samples, verdicts, updates)
    kind = np.repeat(np.arange(len(EventKind)), [len(part) for part in (pieces, *others)])
    stage = np.array([0, Stage.ROLLOUT, Stage.REWARD, Stage.SYNC], np.int64)[kind]
    stage[kind == EventKind.PIECE] = pieces.group % CODES
    tools = np.zeros(len(kind), np.int64)
    tools[kind == EventKind.SAMPLE] = samples.env_ns
    starts = (pieces.start, samples.begin_ns, verdicts.start_ns, updates.start_ns)
    return Events(
        start_ns=np.concatenate(starts),
        end_ns=np.concatenate([pieces.end, *(part.end_ns for part in others)]),
        process=np.concatenate([pieces.group // CODES, *(part.process for part in others)]),
        stage=stage,
        tools_ns=tools,
        first=tuple(np.searchsorted(kind, range(len(EventKind) + 1)).tolist()),
    )


def read_syncs(run: OpenedRun) -> UpdateEvents:
    figures = "process, version, role, start_ns, end_ns"
    query = f"select {figures} from raw_syncs where {TIMED} and version >= 0"
    process, version, role, start, end = columns(run, query)
    return UpdateEvents(process, version, (role == SyncRole.SOURCE).astype(np.int64), start, end)


def _pieces(activity: Activity, since_ns: int, until_ns: int) -> Intervals:
    """When each process was in each stage (the group) but waits, without a pause, in this time."""
    parts = []
    for since, until, process, stages in activity.of_processes(since_ns, until_ns):
        start = np.maximum(stages.start, max(since, since_ns))
        end = np.minimum(stages.end, min(until, until_ns))
        kept = np.flatnonzero((end > start) & (stages.group != Stage.WAIT))
        group = process.take(kept) * CODES + stages.group.take(kept)
        parts.append(of_spans(group, start.take(kept), end.take(kept)))
    return union(joined(parts))
