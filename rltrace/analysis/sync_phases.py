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

_PAIRS = 4_000_000  # that are looked at together


def phases(run: Run, participants: str) -> tuple[tuple[str, Spread], ...]:
    """Seconds an update by phase, of the phases that were recorded. `participants` is SQL that
    gives `number` (of the update), `process`, `start_ns` and `end_ns`.

    An update is the union of its participants, and has the phases that ran in their processes
    meanwhile (`_PHASES_OF`), so that updates which overlap keep their own. An instant at which
    several phases of an update run, in different processes, is the first phase's: the later one
    still has to wait for that.
    """
    number, mine, start, end = columns(
        run, f"select number, process, start_ns, end_ns from ({participants})"
    )
    found = columns(run, _PHASES)
    place = _of_updates(found[1], found[3], found[4], mine, start, end)
    phase, process, lane, begun, ended = (column[place >= 0] for column in found)
    of = number[place[place >= 0]]
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


_PHASES = f"""
    select phase, process, lane, start_ns, end_ns from raw_spans
    where start_ns > 0 and end_ns >= start_ns
      and stage = {int(Stage.SYNC)} and phase between 0 and {max(Phase)}"""


def _of_updates(
    process: Ints, begun: Ints, ended: Ints, mine: Ints, start: Ints, end: Ints
) -> Ints:
    """The place of the participant (in process `mine`, from `start` to `end`) that each phase is
    of; -1: none. A phase is of the update that its own process took part in meanwhile, if there is
    one, else of one that others did; of several the one that it overlaps longest, and of those the
    one begun last."""
    found = np.full(len(process), -1, np.int64)
    theirs, own = np.argsort(mine, kind="stable"), np.argsort(process, kind="stable")
    whose_parts, whose_spans = mine[theirs], process[own]
    for one in np.unique(process):
        spans = own[slice(*np.searchsorted(whose_spans, [one, one + 1]))]
        parts = theirs[slice(*np.searchsorted(whose_parts, [one, one + 1]))]
        place = _longest(begun[spans], ended[spans], start[parts], end[parts])
        found[spans] = np.append(parts, -1)[place]
    rest = np.flatnonzero(found == -1)
    found[rest] = _longest(begun[rest], ended[rest], start, end)
    return found


def _longest(begun: Ints, ended: Ints, start: Ints, end: Ints) -> Ints:
    """For each interval the place of the one from `start` to `end` that it overlaps longest."""
    found = np.full(len(begun), -1, np.int64)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    low = np.searchsorted(np.maximum.accumulate(end), begun, side="left")
    near = np.clip(np.searchsorted(start, ended, side="right") - low, 0, None)
    cuts = np.searchsorted(np.cumsum(near), np.arange(_PAIRS, near.sum(), _PAIRS))
    for part in np.split(np.arange(len(begun)), cuts):
        which = np.repeat(part, near[part])
        before = np.repeat(np.cumsum(near[part]) - near[part], near[part])
        at = np.repeat(low[part], near[part]) + np.arange(len(which)) - before
        meet = end[at] >= begun[which]
        which, at = which[meet], at[meet]
        overlap = np.minimum(end[at], ended[which]) - np.maximum(start[at], begun[which])
        best = np.lexsort((start[at], overlap, which))
        found[which[best]] = order[at[best]]  # of several the last stays
    return found


def _bounds(group: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The first start and the last end of each group; groups are 0, 1, ... and in order."""
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    return np.minimum.reduceat(start, begins), np.maximum.reduceat(end, begins)
