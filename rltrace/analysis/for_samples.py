"""How long the learner ran beside the actors' work on samples, which is not all that they do.

A process may span a stage all the time and for its own sake, beside which every other stage seems
hidden. Processes that recorded samples or verdicts work on samples. What others span in the actors'
stages counts while a sample is generated or judged, and where the stage has no such rows; else it
shortens no step by ending, so it bounds no cost. Of a verdict that came without a duration it is
known that it was reached between the end of its sample and the moment it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rltrace.analysis.activity import Activity
from rltrace.analysis.chains import Chain, Seconds, summed
from rltrace.analysis.intervals import mapped, of_spans, union
from rltrace.analysis.pieces import read_pieces
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stages import cut_steps
from rltrace.analysis.steps import Steps
from rltrace.trace.vocabulary import Stage

_LEARNER, _ACTORS, _SAMPLES = range(3)
_ALL = 0b111


def for_samples_s(analysis: RunAnalysis) -> Seconds:
    """Seconds by step in which both chains ran and the actors' had a sample at work."""
    activity, steps, chain_of = analysis.activity, analysis.steps, analysis.breakdown.chain_of
    samples, verdicts = analysis.tracks.samples, analysis.tracks.verdicts
    began_ns = verdicts.start_ns.copy()  # when each verdict began, at the earliest
    event = (verdicts.end_ns <= verdicts.start_ns) & (verdicts.sample >= 0)
    began_ns[event] = np.minimum(samples.end_ns[verdicts.sample[event]], began_ns[event])
    at_work = np.unique(np.concatenate([samples.process, verdicts.process]))
    in_rows = [Stage.ROLLOUT, Stage.ENV]
    if (verdicts.end_ns > began_ns).any():
        in_rows.append(Stage.REWARD)
    learning, acting = (
        [stage for stage, of in chain_of.items() if of is chain and stage != Stage.OTHER]
        for chain in (Chain.LEARNER, Chain.ACTORS)
    )
    starts, ends = steps.starts_ns, steps.ends_ns
    edges = [int(starts[part.first]) for part in stretches(activity, steps)] + [int(ends.max())]

    def together_s(part: tuple[int, int]) -> Seconds:
        since, until = part
        pieces = read_pieces(activity, since, until)
        acts = np.isin(pieces.stage, acting)
        serves = np.isin(pieces.process, at_work) | ~np.isin(pieces.stage, in_rows)
        groups = [
            (group, pieces.start_ns[chosen], pieces.end_ns[chosen])
            for group, chosen in (
                (_LEARNER, np.isin(pieces.stage, learning)),
                (_ACTORS, acts),
                (_SAMPLES, acts & serves),
            )
        ]
        rows = (samples.begin_ns, samples.end_ns), (began_ns, verdicts.end_ns)
        for start, end in rows:
            now = (start < until) & (end > since)
            groups.append((_SAMPLES, start[now], end[now]))
        group = np.concatenate([np.full(len(start), of, np.int64) for of, start, _ in groups])
        start, end = (np.concatenate([one[i] for one in groups]) for i in (1, 2))
        merged = union(of_spans(group, start, end))
        step, mask, seconds = cut_steps(merged, starts, ends, since, until)
        together = mask == _ALL
        return summed(step[together], seconds[together], len(starts))

    found = np.sum(list(mapped(together_s, pairwise(edges))), axis=0)
    bounded: Seconds = np.minimum(found, analysis.breakdown.overlap_s)
    return bounded


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
    `seen_first` to `seen_last`, from `since_ns` to `until_ns` (Unix). The outermost have no end."""

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
