"""Work by process: the union of each stage's spans in each process, where an instant of a lane is
the innermost span's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.activity import Activity
from rltrace.analysis.intervals import Bools, Intervals, Ints, joined, places, union
from rltrace.trace.vocabulary import Stage

_CODES = 16


@dataclass(frozen=True)
class Pieces:
    """A place for each stretch of time that a process spent in a stage without a pause."""

    process: Ints
    stage: Ints
    start_ns: Ints
    end_ns: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, chosen: Bools | Ints) -> Pieces:
        """Those that are chosen."""
        at = places(chosen)
        return Pieces(
            self.process.take(at), self.stage.take(at), self.start_ns.take(at), self.end_ns.take(at)
        )


def read_pieces(
    activity: Activity, since_ns: int | None = None, until_ns: int | None = None
) -> Pieces:
    """All pieces but waits, in the order of processes and stages; of a part of the time those that
    overlap it, cut to it."""
    first = activity.first_ns if since_ns is None else since_ns
    last = activity.last_ns + 1 if until_ns is None else until_ns
    parts = []
    for since, until, process, stages in activity.of_processes(first, last):
        start = np.maximum(stages.start, max(since, first))
        end = np.minimum(stages.end, min(until, last))
        kept = places((end > start) & (stages.group != Stage.WAIT))
        group = process.take(kept) * _CODES + stages.group.take(kept)
        alone = np.ones(len(group), np.bool_)
        parts.append(
            Intervals(group, start.take(kept), end.take(kept), np.zeros_like(group), alone)
        )
    merged = union(joined(parts))
    return Pieces(merged.group // _CODES, merged.group % _CODES, merged.start, merged.end)
