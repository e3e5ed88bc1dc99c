"""Work by process: the union of each stage's spans in each process, where an instant of a lane is
the innermost span's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.activity import Activity
from rltrace.analysis.intervals import Columns, Ints, joined, of_spans, places, union
from rltrace.trace.vocabulary import Stage

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
