"""Everything that can be on the critical path, in one set of columns: stretches of work of the
processes, generations of samples, verdicts on them, and shares in weight updates."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Events:
    """A place for each event; pieces come first, then samples, verdicts and updates, each from its
    offset on. `tools_ns` is the part of a sample in which its tools ran."""

    start_ns: Ints
    end_ns: Ints
    process: Ints
    stage: Ints
    tools_ns: Ints
    samples_from: int
    verdicts_from: int
    updates_from: int

    def known(self, place: int) -> Known:
        """The event at a place."""
        return Known(
            int(np.searchsorted(self._kinds(), place, side="right")),
            int(self.process[place]),
            int(self.stage[place]),
            int(self.start_ns[place]),
            int(self.end_ns[place]),
        )

    def find(self, event: Known) -> int:
        """The place of an event that other events knew; -1 where it is not among these."""
        bounds = [0, *self._kinds(), len(self.start_ns)]
        first = bounds[event.kind]
        here = slice(first, bounds[event.kind + 1])
        start, end = self.start_ns[here], self.end_ns[here]
        found = (self.process[here] == event.process) & (self.stage[here] == event.stage)
        if event.kind == 0:
            found &= (start <= event.start_ns) & (end > event.start_ns)
        else:
            found &= (start == event.start_ns) & (end == event.end_ns)
        places = np.flatnonzero(found)
        return first + int(places[-1]) if len(places) else -1

    def _kinds(self) -> tuple[int, int, int]:
        return self.samples_from, self.verdicts_from, self.updates_from

    @property
    def pieces(self) -> Ints:
        """Their places; likewise the next three."""
        return np.arange(self.samples_from)

    @property
    def samples(self) -> Ints:
        return np.arange(self.samples_from, self.verdicts_from)

    @property
    def verdicts(self) -> Ints:
        return np.arange(self.verdicts_from, self.updates_from)

    @property
    def updates(self) -> Ints:
        return np.arange(self.updates_from, len(self.start_ns))


def events_of(pieces: Pieces, followed: Followed, updates: Updates) -> Events:
    """All of them in one, each kind nearly in the order of time: that is sorted sooner."""
    pieces = pieces.take(np.argsort(pieces.start_ns, kind="stable"))
    samples, verdicts = followed.samples, followed.verdicts
    sizes = [len(pieces), len(samples), len(verdicts.start_ns), len(updates.start_ns)]
    n = np.cumsum(sizes)
    parts = (pieces, samples, verdicts, updates)
    stage = np.repeat(np.array([0, Stage.ROLLOUT, Stage.REWARD, Stage.SYNC], np.int64), sizes)
    stage[: n[0]] = pieces.stage
    tools = np.zeros(n[3], np.int64)
    tools[n[0] : n[1]] = samples.env_ns
    starts = (pieces.start_ns, samples.begin_ns, verdicts.start_ns, updates.start_ns)
    return Events(
        start_ns=np.concatenate(starts),
        end_ns=np.concatenate([part.end_ns for part in parts]),
        process=np.concatenate([part.process for part in parts]),
        stage=stage,
        tools_ns=tools,
        samples_from=int(n[0]),
        verdicts_from=int(n[1]),
        updates_from=int(n[2]),
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
