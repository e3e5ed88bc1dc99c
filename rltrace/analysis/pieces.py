"""Work by process: the union of each stage's spans in each process, where an instant of a lane is
the innermost span's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.activity import Activity
from rltrace.analysis.intervals import Bools, Intervals, Ints, joined, union
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

    def take(self, chosen: Bools) -> Pieces:
        """Those that are chosen."""
        return Pieces(
            self.process[chosen], self.stage[chosen], self.start_ns[chosen], self.end_ns[chosen]
        )


def read_pieces(activity: Activity) -> Pieces:
    """All pieces but waits, in the order of processes and stages."""
    parts = []
    slices = activity.of_processes(activity.first_ns, activity.last_ns + 1)
    for since, until, process, stages in slices:
        start, end = np.maximum(stages.start, since), np.minimum(stages.end, until)
        kept = (end > start) & (stages.group != Stage.WAIT)
        group = process[kept] * _CODES + stages.group[kept]
        alone = np.ones(len(group), np.bool_)
        parts.append(Intervals(group, start[kept], end[kept], np.zeros_like(group), alone))
    merged = union(joined(parts))
    return Pieces(merged.group // _CODES, merged.group % _CODES, merged.start, merged.end)
