"""Which steps generate: where one generation serves several updates, most steps only train.

Steps that generate are long by design. So a step is only held against those of its kind, and means
are of whole generations: a generation with all the steps that train on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rltrace.analysis.intervals import Bools, Ints
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Stage

FEWEST_ALIKE = 3
"""Fewer steps of a kind do not tell how long one usually takes."""

_PART = 0.1
"""The part of a generation, or of a step, that has to be in the other: the ranks of a learner do
not begin a step at the same moment."""


@dataclass(frozen=True)
class Generating:
    """Of each step whether it `generates`; `crosses`: some generation went on in the next one."""

    generates: tuple[bool, ...]
    crosses: bool


def find_generating(run: Run, starts: Ints, ends: Ints) -> Generating:
    """Which of the steps between these moments (Unix ns, in order, not overlapping) generate. Where
    all do, as one process can tell, it does not matter what crosses."""
    timed = "start_ns > 0 and end_ns > start_ns"
    spans = f"from raw_spans where stage = {int(Stage.ROLLOUT)} and {timed}"
    if not run.ask(f"select 1 {spans} limit 1"):  # then samples are the work
        spans = f"from raw_trajectories where {timed}"
    one = f"{spans} and process = (select process {spans} limit 1)"
    found = _found(run, one, starts, ends)
    return found if all(found.generates) else _found(run, spans, starts, ends)


def _found(run: Run, spans: str, starts: Ints, ends: Ints) -> Generating:
    edge = np.zeros(len(starts) + 1, np.int64)
    crosses = False
    for batch in pa.RecordBatchReader.from_stream(run.sql(f"select start_ns, end_ns {spans}")):
        since, until = (column.to_numpy().astype(np.int64) for column in batch.columns)
        first = np.searchsorted(ends, since, side="right")
        last = np.searchsorted(starts, until, side="left") - 1
        met = first <= last
        since, until, first, last = since[met], until[met], first[met], last[met]
        first += _is_aside(since, until, starts[first], ends[first])
        last -= _is_aside(since, until, starts[last], ends[last])
        met = first <= last
        crosses |= bool((first < last).any())
        edge += np.bincount(first[met], minlength=len(edge))
        edge -= np.bincount(last[met] + 1, minlength=len(edge))
    return Generating(tuple((np.cumsum(edge)[:-1] > 0).tolist()), crosses)


def _is_aside(since: Ints, until: Ints, start: Ints, end: Ints) -> Bools:
    """Whether what a step has of a generation is a small part of both."""
    both = np.minimum(until, end) - np.maximum(since, start)
    aside: Bools = both < _PART * np.minimum(until - since, end - start)
    return aside


def steps_per_generation(found: Generating) -> int:
    """How many steps train on what one of them generates, the usual number; 0 where the steps do
    not come in such turns: one generation goes on into the next step, or too few are alike."""
    begins = np.flatnonzero(found.generates)
    if found.crosses or len(begins) < 2:
        return 0
    lengths, counts = np.unique(np.diff(begins), return_counts=True)
    usual = int(lengths[np.argmax(counts)])
    at_the_ends = max(int(begins[0]), len(found.generates) - int(begins[-1]))
    regular = 2 * counts.max() > counts.sum() and at_the_ends <= usual
    return usual if usual > 1 and regular else 0


def held_against(places: Iterable[int], generates: Sequence[bool]) -> dict[bool, list[int]]:
    """Those of the places of steps that tell how long one usually takes that generates (True), and
    one that does not; none where nobody knows. One that does not has less to do, so that where
    there are few of its kind, those that generate tell."""
    kinds: dict[bool, list[int]] = {True: [], False: []}
    for place in places:
        kinds[generates[place]].append(place)
    long, short = (one if len(one) >= FEWEST_ALIKE else [] for one in (kinds[True], kinds[False]))
    return {True: long, False: short or long}
