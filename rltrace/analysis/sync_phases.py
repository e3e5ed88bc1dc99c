"""The phases of weight updates: which part of the time of an update each of them took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.chains import summed
from rltrace.analysis.codes import named
from rltrace.analysis.columns import columns
from rltrace.analysis.intervals import Ints, innermost, of_spans, union
from rltrace.analysis.spread import Spread, spread
from rltrace.trace.vocabulary import Phase, Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run


def phases(run: Run, participants: str) -> tuple[tuple[str, Spread], ...]:
    """Seconds an update by phase, of the phases that were recorded. `participants` is SQL that
    gives `number` (of the update), `process`, `start_ns` and `end_ns`.

    An update is the union of its participants, and has the phases that ran in their processes
    meanwhile (`_PHASES_OF`), so that updates which overlap keep their own. An instant at which
    several phases of an update run, in different processes, is the first phase's: the later one
    still has to wait for that.
    """
    number, start, end = columns(run, f"select number, start_ns, end_ns from ({participants})")
    of, phase, process, lane, begun, ended = columns(run, _PHASES_OF.format(participants))
    if not len(of):
        return ()
    numbers, place = np.unique(number, return_inverse=True)
    updates = union(of_spans(place, start, end, np.zeros_like(start)))
    # Of nested spans the innermost counts.
    group = np.searchsorted(numbers, of) * len(Phase) + phase
    running = union(innermost(of_spans(group, begun, ended, lane), process))
    which, phase = np.divmod(running.group, len(Phase))

    # One sweep serves all updates, since each is moved to where the one before it ends.
    first, last = _bounds(updates.group, updates.start, updates.end)
    origin = np.cumsum(last - first) - (last - first)
    update = np.concatenate([which, which, updates.group, updates.group])
    times = np.concatenate([running.start, running.end, updates.start, updates.end])
    times = times.clip(first[update], last[update]) - first[update] + origin[update]
    bit, at_work = np.left_shift(1, phase), np.full(len(updates), 1 << len(Phase))
    order = np.argsort(times, kind="stable")
    mask = np.cumsum(np.concatenate([bit, -bit, at_work, -at_work])[order])[:-1]
    left, seconds = times[order][:-1], np.diff(times[order]) / 1e9
    inside = (mask > 1 << len(Phase)) & (seconds > 0)
    earliest = np.argmax((mask[inside, None] >> np.arange(len(Phase))) & 1 == 1, axis=1)
    owner = np.searchsorted(origin, left[inside], side="right") - 1
    cell = owner * len(Phase) + earliest
    spent = summed(cell, seconds[inside], len(numbers) * len(Phase)).reshape(-1, len(Phase))
    seen = [int(one) for one in np.unique(phase)]
    return tuple((named(Phase, one), spread(spent[:, one])) for one in seen)


_PHASES_OF = f"""
    with spans as (
        select row_number() over () as id, * from raw_spans
        where start_ns > 0 and end_ns >= start_ns
          and stage = {int(Stage.SYNC)} and phase between 0 and {max(Phase)})
    select arg_max(p.number, [(p.process = s.process)::bigint,
                              least(p.end_ns, s.end_ns) - greatest(p.start_ns, s.start_ns),
                              p.start_ns]),
           any_value(s.phase), any_value(s.process), any_value(s.lane), any_value(s.start_ns),
           any_value(s.end_ns)
    from spans s join ({{}}) p on p.start_ns <= s.end_ns and s.start_ns <= p.end_ns
    group by s.id"""
# A phase is of the update that its own process took part in meanwhile, if there is one; of several
# the one that it overlaps longest, and of those the one begun last.


def _bounds(group: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The first start and the last end of each group; groups are 0, 1, ... and in order."""
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    return np.minimum.reduceat(start, begins), np.maximum.reduceat(end, begins)
