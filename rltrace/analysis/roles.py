"""The roles of a job, and how long a step takes each of them if it never waits for another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.chains import STAGES, Seconds, summed
from rltrace.analysis.intervals import Ints, of_spans, union
from rltrace.analysis.pieces import Pieces
from rltrace.trace.vocabulary import Stage

GENERATES = (Stage.ROLLOUT, Stage.ENV)
MOVES = (Stage.SYNC, Stage.SWITCH)
TAKE_TURNS = 0.1
"""Stages of a process that overlap for less than this part of the shorter one take turns."""

_MOVES = sum(1 << stage for stage in MOVES)


@dataclass(frozen=True)
class Range:
    """Seconds a step, and between which bounds they are."""

    low: float
    middle: float
    high: float

    def longer(self, other: Range) -> Range:
        """The longer of two, at each place."""
        return Range(
            max(self.low, other.low), max(self.middle, other.middle), max(self.high, other.high)
        )


@dataclass(frozen=True)
class Rows:
    """What is known of a role's samples one by one: seconds in which they were worked on (in
    `stage`) over how many of a process were worked on at once, of all its processes; `tools_s` of
    their tools likewise. `alone` and `beside` are what a token takes of a lone sequence, and on top
    of that where all places are taken."""

    stage: Stage
    work_s: float
    tools_s: float
    alone: float = 1.0
    beside: float = 0.0

    def full_s(self, without: frozenset[Stage]) -> float:
        """Seconds for the same work where all places are taken."""
        work_s = 0.0 if self.stage in without else self.work_s
        return work_s + (0.0 if Stage.ENV in without else self.tools_s)

    def rate(self, used: float) -> float:
        """Pace with so large a part of the places taken, over that with all of them."""
        alone, beside = self.alone, self.beside
        return used * (alone + beside) / (alone + beside * used)


@dataclass(frozen=True)
class Role:
    """Processes that do the same. `set_s` is how long which set of stages (bit = stage code) ran in
    them, all together; `part` is what one of them has to do of that for a step."""

    name: str
    set_s: Seconds
    part: float
    rows: Rows | None = None

    def seconds(self, without: frozenset[Stage] = frozenset()) -> Range:
        """What a step takes this role, but for some stages."""
        kept = sum(1 << stage for stage in Stage if stage not in without)
        samples = kept & ~_MOVES
        high = self._seconds(samples)
        low = middle = high
        if self.rows is not None:
            low = self.rows.full_s(without)
            high = max(low, high)
            middle = high * self.rows.rate(low / high) if high else 0.0
        moves_s = self._seconds(kept) - self._seconds(samples)
        middle = max(middle, moves_s) if self._moves_aside else middle + moves_s
        bounds = max(low, moves_s), middle, high + moves_s
        return Range(*(seconds * self.part for seconds in bounds))

    @property
    def _moves_aside(self) -> bool:
        """Whether weights come in beside the work on samples, and hold none of it up."""
        masks = np.arange(len(self.set_s))
        moves, both = (masks & _MOVES != 0), masks & ~_MOVES != 0
        moves_s = float(self.set_s[moves].sum())
        return float(self.set_s[moves & both].sum()) > TAKE_TURNS * moves_s

    def does(self, stages: Iterable[Stage]) -> bool:
        """Whether any of these is among what it does."""
        return self._seconds(sum(1 << stage for stage in stages)) > 0

    def _seconds(self, bits: int) -> float:
        masks = np.arange(len(self.set_s))
        return float(self.set_s[masks & bits != 0].sum())


def united(group: Ints, pieces: Pieces) -> Pieces:
    """The union of each group over all processes, as that of one; the group stands for a stage."""
    one = union(of_spans(group, pieces.start_ns, pieces.end_ns, np.zeros_like(group)))
    return Pieces(np.zeros_like(one.group), one.group, one.start, one.end)


def set_seconds(pieces: Pieces) -> Seconds:
    """Seconds for which exactly the stages of a set ran in a process, of all processes together, by
    the set (bit = stage code). Pieces of one process and stage do not overlap."""
    bit = np.left_shift(1, pieces.stage)
    times = np.concatenate([pieces.start_ns, pieces.end_ns])
    process = np.concatenate([pieces.process, pieces.process])
    order = np.lexsort((times, process))
    mask = np.cumsum(np.concatenate([bit, -bit])[order])[:-1]
    length = np.diff(times[order])
    some = (mask > 0) & (length > 0)
    return summed(mask[some], length[some] / 1e9, 1 << STAGES)
