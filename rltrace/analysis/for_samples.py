"""How long the learner ran beside the actors' work on samples, which is not all that they do.

A process may span a stage all the time and for its own sake: an audit of old verdicts, say. Beside
such a background every other stage seems hidden. Where samples were followed, it is known who works
on them: processes that recorded samples or verdicts. What others span in the actors' stages counts
while a sample is generated or judged, and where the stage has no such rows; else it shortens no
step by ending, so it bounds no cost. Of a verdict that came without a duration it is known that it
was reached between the end of its sample and the moment it came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.activity import Activity
from rltrace.analysis.chains import Chain, Seconds, summed
from rltrace.analysis.followed import Followed, follow
from rltrace.analysis.intervals import Bools, Intervals, Ints, of_spans, union
from rltrace.analysis.pieces import read_pieces
from rltrace.analysis.stages import Breakdown, cut_steps
from rltrace.analysis.steps import Steps
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_LEARNER, _ACTORS, _SAMPLES = range(3)
_ALL = 0b111


def for_samples_s(run: Run, activity: Activity, steps: Steps, breakdown: Breakdown) -> Seconds:
    """Seconds by step in which both chains ran and the actors' had a sample at work."""
    followed, pieces = follow(run, steps), read_pieces(activity)
    samples, verdicts = followed.samples, followed.verdicts
    in_rows = [Stage.ROLLOUT, Stage.ENV]
    began_ns = _begins(followed)
    if (verdicts.end_ns > began_ns).any():
        in_rows.append(Stage.REWARD)

    def of(chain: Chain, only: Bools | None = None) -> tuple[Ints, Ints]:
        mine = [s for s, its in breakdown.chain_of.items() if its is chain and s is not Stage.OTHER]
        kept = np.isin(pieces.stage, mine)
        kept = kept if only is None else kept & only
        return pieces.start_ns[kept], pieces.end_ns[kept]

    at_work = np.isin(pieces.process, np.concatenate([samples.process, verdicts.process]))
    parts = (
        (_LEARNER, of(Chain.LEARNER)),
        (_ACTORS, of(Chain.ACTORS)),
        (_SAMPLES, of(Chain.ACTORS, at_work | ~np.isin(pieces.stage, in_rows))),
        (_SAMPLES, (samples.begin_ns, samples.end_ns)),
        (_SAMPLES, (began_ns, verdicts.end_ns)),
    )
    starts = np.array([window.start_ns for window in steps.windows], np.int64)
    ends = np.array([window.end_ns for window in steps.windows], np.int64)
    last = int(ends.max())
    step, mask, seconds = cut_steps(_merged(parts), starts, ends, int(starts.min()), last)
    together = mask == _ALL
    found = summed(step[together], seconds[together], len(starts))
    bounded: Seconds = np.minimum(found, breakdown.overlap_s)
    return bounded


def _begins(followed: Followed) -> Ints:
    """When each verdict began, at the earliest."""
    samples, verdicts = followed.samples, followed.verdicts
    event = (verdicts.end_ns <= verdicts.start_ns) & (verdicts.sample >= 0)
    begins = verdicts.start_ns.copy()
    begins[event] = np.minimum(samples.end_ns[verdicts.sample[event]], begins[event])
    return begins


def _merged(parts: tuple[tuple[int, tuple[Ints, Ints]], ...]) -> Intervals:
    """The union of each group."""
    group = np.concatenate([np.full(len(start), name, np.int64) for name, (start, _) in parts])
    start, end = (np.concatenate([part[i] for _, part in parts]) for i in (0, 1))
    return union(of_spans(group, start, end, np.zeros_like(group)))
