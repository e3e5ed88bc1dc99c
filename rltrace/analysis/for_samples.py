"""How long the learner ran beside the actors' work on samples, which is not all that they do.

A process may span a stage all the time and for its own sake: an audit of old verdicts, say. Beside
such a background every other stage seems hidden. Where samples were followed, it is known who works
on them: processes that recorded samples or verdicts. What others span in the actors' stages counts
while a sample is generated or judged, and where the stage has no such rows; else it shortens no
step by ending, so it bounds no cost. Of a verdict that came without a duration it is known that it
was reached between the end of its sample and the moment it came.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.activity import Activity
from rltrace.analysis.chains import Chain, Seconds, summed
from rltrace.analysis.followed import Followed, follow
from rltrace.analysis.intervals import Intervals, Ints, mapped, of_spans, union
from rltrace.analysis.pieces import Pieces, read_pieces
from rltrace.analysis.stages import Breakdown, cut_steps
from rltrace.analysis.steps import Steps
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rltrace.trace.run import Run

_LEARNER, _ACTORS, _SAMPLES = range(3)
_ALL = 0b111


def for_samples_s(
    run: Run,
    activity: Activity,
    steps: Steps,
    breakdown: Breakdown,
    followed: Followed | None = None,
) -> Seconds:
    """Seconds by step in which both chains ran and the actors' had a sample at work. `followed` is
    what `run` says of its samples, where that has been read."""
    followed = follow(run, steps) if followed is None else followed
    work = _Work(followed, breakdown)
    starts = np.array([window.start_ns for window in steps.windows], np.int64)
    ends = np.array([window.end_ns for window in steps.windows], np.int64)
    parts = stretches(activity, steps)
    edges = [int(starts[part.first]) for part in parts] + [int(ends.max())]
    found = np.zeros(len(starts))

    def together_s(part: tuple[int, int]) -> Seconds:
        since, until = part
        merged = work.merged(read_pieces(activity, since, until), since, until)
        step, mask, seconds = cut_steps(merged, starts, ends, since, until)
        together = mask == _ALL
        return summed(step[together], seconds[together], len(starts))

    for seconds in mapped(together_s, pairwise(edges)):
        found += seconds
    bounded: Seconds = np.minimum(found, breakdown.overlap_s)
    return bounded


class _Work:
    """Who works on samples, and when."""

    def __init__(self, followed: Followed, breakdown: Breakdown) -> None:
        samples, verdicts = followed.samples, followed.verdicts
        self._began_ns = _begins(followed)
        self._followed = followed
        self._at_work = np.unique(np.concatenate([samples.process, verdicts.process]))
        self._in_rows = [Stage.ROLLOUT, Stage.ENV]
        if (verdicts.end_ns > self._began_ns).any():
            self._in_rows.append(Stage.REWARD)
        self._stages = {
            chain: [s for s, of in breakdown.chain_of.items() if of is chain and s != Stage.OTHER]
            for chain in Chain
        }

    def merged(self, pieces: Pieces, since: int, until: int) -> Intervals:
        """The learner's, the actors' and the samples' part of some time, each a union."""
        actors = np.isin(pieces.stage, self._stages[Chain.ACTORS])
        at_work = np.isin(pieces.process, self._at_work)
        at_work |= ~np.isin(pieces.stage, self._in_rows)
        samples, verdicts = self._followed.samples, self._followed.verdicts
        learner = pieces.take(np.isin(pieces.stage, self._stages[Chain.LEARNER]))
        acting, serving = pieces.take(actors), pieces.take(actors & at_work)
        parts = [
            (_LEARNER, learner.start_ns, learner.end_ns),
            (_ACTORS, acting.start_ns, acting.end_ns),
            (_SAMPLES, serving.start_ns, serving.end_ns),
        ]
        for start, end in (
            (samples.begin_ns, samples.end_ns),
            (self._began_ns, verdicts.end_ns),
        ):
            now = (start < until) & (end > since)
            parts.append((_SAMPLES, start[now], end[now]))
        group = np.concatenate([np.full(len(start), name, np.int64) for name, start, _ in parts])
        start, end = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
        return union(of_spans(group, start, end, np.zeros_like(group)))


def _begins(followed: Followed) -> Ints:
    """When each verdict began, at the earliest."""
    samples, verdicts = followed.samples, followed.verdicts
    event = (verdicts.end_ns <= verdicts.start_ns) & (verdicts.sample >= 0)
    begins = verdicts.start_ns.copy()
    begins[event] = np.minimum(samples.end_ns[verdicts.sample[event]], begins[event])
    return begins


# --- a long run in stretches of steps, so that what is looked at closely fits into memory
# Each stretch is looked at with some steps before it and after it, its margins: what a moment had
# to wait for is found within a few steps of it, or was long over.

MOST_SPANS = 1_000_000
"""In a stretch, about, unless a step has more; several stretches are in memory at once."""

_ALWAYS = 1 << 62
_MARGIN = 8  # parts of a stretch that one margin is


@dataclass(frozen=True)
class Stretch:
    """Steps `first` to `last` (places in `Steps.windows`); with their margins they are those from
    `seen_first` to `seen_last`, from `since_ns` to `until_ns` (Unix). Before the first step and
    after the last one there is no end to it."""

    first: int
    last: int
    seen_first: int
    seen_last: int
    since_ns: int
    until_ns: int


def stretches(activity: Activity, steps: Steps, most_spans: int = MOST_SPANS) -> Sequence[Stretch]:
    """All steps, in order; one stretch where there are not too many spans for that."""
    windows = steps.windows
    count = -(-sum(activity.spans_of_stage.values()) // most_spans)
    size = -(-len(windows) // max(1, count))
    margin = -(-size // _MARGIN)
    found = []
    for first in range(0, len(windows), max(1, size)):
        last = min(first + size, len(windows)) - 1
        before, after = max(0, first - margin), min(last + margin, len(windows) - 1)
        since = windows[before].start_ns if before else -_ALWAYS
        until = windows[after].end_ns if after < len(windows) - 1 else _ALWAYS
        found.append(Stretch(first, last, before, after, since, until))
    return found
