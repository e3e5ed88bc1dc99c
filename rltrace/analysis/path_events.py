"""Everything that can be on the critical path, in one set of columns: stretches of work of the
processes, generations of samples, verdicts on them, and shares in weight updates."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from rltrace.analysis.activity import Activity
from rltrace.analysis.followed import Followed
from rltrace.analysis.intervals import Columns, Ints, joined, of_spans, places, union
from rltrace.trace.query_columns import columns
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Stage, SyncRole


@dataclass(frozen=True)
class Updates(Columns):
    """A place for each row of a weight update whose version is known."""

    process: Ints
    version: Ints
    is_source: Ints
    start_ns: Ints
    end_ns: Ints

    def within(self, since_ns: int, until_ns: int) -> Updates:
        """Those that overlap this time."""
        return self.take((self.start_ns <= until_ns) & (self.end_ns >= since_ns))


@dataclass(frozen=True)
class Known:
    """An event as another look at the run finds it again: whether it is a piece, which may be cut
    off at its start, a sample, a verdict or an update, and what tells it from others."""

    kind: int
    process: int
    stage: int
    start_ns: int
    end_ns: int


class Kind(IntEnum):
    """Kinds of events, in the order in which they stand."""

    PIECE, SAMPLE, VERDICT, UPDATE = range(4)


@dataclass(frozen=True)
class Events:
    """A place for each event; pieces come first, then samples, verdicts and updates, each from its
    place in `first` on. `tools_ns` is the part of a sample in which its tools ran."""

    start_ns: Ints
    end_ns: Ints
    process: Ints
    stage: Ints
    tools_ns: Ints
    first: tuple[int, ...]

    def kind(self, place: int) -> int:
        return bisect_right(self.first, place) - 1

    def of(self, kind: int) -> Ints:
        """The places of all of a kind."""
        return np.arange(self.first[kind], self.first[kind + 1])

    def known(self, place: int) -> Known:
        """The event at a place."""
        columns = (self.process, self.stage, self.start_ns, self.end_ns)
        return Known(self.kind(place), *(int(column[place]) for column in columns))

    def find(self, event: Known) -> int:
        """The place of an event that other events knew; -1 where it is not among these."""
        here = slice(*self.first[event.kind : event.kind + 2])
        start, end = self.start_ns[here], self.end_ns[here]
        found = (self.process[here] == event.process) & (self.stage[here] == event.stage)
        if event.kind == Kind.PIECE:
            found &= (start <= event.start_ns) & (end > event.start_ns)
        else:
            found &= (start == event.start_ns) & (end == event.end_ns)
        places = np.flatnonzero(found)
        return here.start + int(places[-1]) if len(places) else -1


def events_of(pieces: Pieces, followed: Followed, updates: Updates) -> Events:
    """All of them in one, each kind nearly in the order of time: that is sorted sooner."""
    pieces = pieces.take(np.argsort(pieces.start_ns, kind="stable"))
    samples, verdicts = followed.samples, followed.verdicts
    parts = (pieces, samples, verdicts, updates)
    kind = np.repeat(np.arange(len(Kind)), [len(part) for part in parts])
    stage = np.array([0, Stage.ROLLOUT, Stage.REWARD, Stage.SYNC], np.int64)[kind]
    stage[kind == Kind.PIECE] = pieces.stage
    tools = np.zeros(len(kind), np.int64)
    tools[kind == Kind.SAMPLE] = samples.env_ns
    starts = (pieces.start_ns, samples.begin_ns, verdicts.start_ns, updates.start_ns)
    return Events(
        start_ns=np.concatenate(starts),
        end_ns=np.concatenate([part.end_ns for part in parts]),
        process=np.concatenate([part.process for part in parts]),
        stage=stage,
        tools_ns=tools,
        first=tuple(np.searchsorted(kind, range(len(Kind) + 1)).tolist()),
    )


def read_updates(run: Run) -> Updates:
    process, version, role, start, end = columns(
        run,
        "select process, version, role, start_ns, end_ns from raw_syncs "
        "where start_ns > 0 and end_ns > start_ns and version >= 0",
    )
    return Updates(process, version, (role == SyncRole.SOURCE).astype(np.int64), start, end)


# --- work by process: the union of each stage's spans in each process

_CODES = 16


@dataclass(frozen=True)
class Pieces(Columns):
    """A place for each stretch of time that a process spent in a stage without a pause."""

    process: Ints
    stage: Ints
    start_ns: Ints
    end_ns: Ints


def read_pieces(activity: Activity, since_ns: int, until_ns: int) -> Pieces:
    """All pieces but waits that overlap this time, cut to it, by process and stage."""
    parts = []
    for since, until, process, stages in activity.of_processes(since_ns, until_ns):
        start = np.maximum(stages.start, max(since, since_ns))
        end = np.minimum(stages.end, min(until, until_ns))
        kept = places((end > start) & (stages.group != Stage.WAIT))
        group = process.take(kept) * _CODES + stages.group.take(kept)
        parts.append(of_spans(group, start.take(kept), end.take(kept)))
    merged = union(joined(parts))
    return Pieces(merged.group // _CODES, merged.group % _CODES, merged.start, merged.end)
