"""Where the time of the steps went, stage by stage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.activity import Activity
from rltrace.analysis.chains import STAGES, Chain, Seconds, chains_of, exposed_stage, summed
from rltrace.analysis.intervals import Bools, Intervals, Ints
from rltrace.analysis.stats.spread import Spread, spread
from rltrace.analysis.steps import Steps
from rltrace.trace.vocabulary import STAGE_SYMBOLS, Stage, word


@dataclass(frozen=True)
class StageRow:
    """A stage over the steady steps in which anything was recorded; seconds a step.

    `tau_s` is the length of the union of its intervals in the step, over all processes, where an
    instant of a lane belongs to its innermost span. `exposed_s` is the part charged to it and
    `hidden_s` the rest (`rltrace.analysis.chains` has the rule). `share` is exposed / step. None of
    the three is known of any stage where one is `untold`, and of that one `tau_s` is not either.
    """

    stage: Stage
    name: str
    symbol: str
    spans: int
    processes: int
    tau_s: Spread
    exposed_s: Spread
    hidden_s: Spread
    share: float


@dataclass(frozen=True)
class Breakdown:
    """Seconds by step (first axis: place in `Steps.windows`) and stage code (second axis).

    `exposed_s` with its `wait` column, and `unattributed_s`, add up to `steps_s`. `overlap_s` is
    how long the actors' and the learner's chain ran at once, `beside_s` how long stages of one
    chain ran beside another of it. `chain_s` (second axis: `Chain`) is how long any stage of a
    chain ran; `other`, which is structure, is not in it. `learner_beside_weights_s` is how long the
    learner's chain ran while weights moved.
    `chain_of` is the chain that each stage was found to be on.
    `sets` has the seconds of each set of stages that ran at once: `(step, bits, seconds)`. Where
    stages are `untold` (`Activity`), all of this is of the samples that have rows, so that exposed
    and unattributed seconds are of no meaning, and nobody is to be told them.
    """

    steps_s: Seconds
    tau_s: Seconds
    exposed_s: Seconds
    unattributed_s: Seconds
    overlap_s: Seconds
    beside_s: Seconds
    chain_s: Seconds
    learner_beside_weights_s: Seconds
    chain_of: dict[Stage, Chain]
    sets: tuple[Ints, Ints, Seconds]
    untold: frozenset[Stage] = frozenset()

    def runs_s(self, stages: Iterable[Stage], without: Iterable[Stage] = ()) -> Seconds:
        """How long any of these stages ran, by step, while none of the others did (structure does
        not count)."""
        step, mask, seconds = self.sets
        bits, others = (sum(1 << stage for stage in some) for some in (stages, without))
        kept = _runs(mask, bits) & ~_runs(mask, others & ~(1 << Stage.OTHER))
        return summed(step[kept], seconds[kept], len(self.steps_s))


def break_down(activity: Activity, steps: Steps) -> Breakdown:
    """Cuts the steps at every change of what runs, and charges each piece to a stage."""
    starts = np.array([window.start_ns for window in steps.windows], np.int64)
    ends = np.array([window.end_ns for window in steps.windows], np.int64)
    steps_s = (ends - starts) / 1e9
    slices = activity.slices(activity.first_ns, activity.last_ns + 1)
    parts = [cut_steps(stages, starts, ends, since, until) for since, until, stages in slices]
    step, mask, seconds = _added(*map(np.concatenate, zip(*parts, strict=True)))
    n = len(steps_s)
    tau_s = np.zeros((n, STAGES))
    for stage in range(STAGES):
        runs = mask >> stage & 1 == 1
        tau_s[:, stage] = summed(step[runs], seconds[runs], n)
    chain_of = chains_of(mask, seconds, activity.by_trainers)
    stage_of = exposed_stage(step, mask, seconds, steps_s, chain_of)
    place = step * (STAGES + 1) + stage_of + 1
    charged = summed(place, seconds, n * (STAGES + 1)).reshape(n, STAGES + 1)
    bits = {c: sum(1 << stage for stage, of in chain_of.items() if of is c) for c in Chain}
    in_chain = [_runs(mask, bits[chain] & ~(1 << Stage.OTHER)) for chain in Chain]
    both = in_chain[Chain.ACTORS] & in_chain[Chain.LEARNER]
    through = in_chain[Chain.WEIGHTS] & in_chain[Chain.LEARNER]
    beside = sum(_beside(mask, bits[chain] & ~(1 << Stage.OTHER)) for chain in Chain)
    return Breakdown(
        steps_s=steps_s,
        tau_s=tau_s,
        exposed_s=charged[:, 1:],
        unattributed_s=charged[:, 0],
        overlap_s=summed(step[both], seconds[both], n),
        beside_s=summed(step, seconds * beside, n),
        chain_s=np.stack([summed(step[runs], seconds[runs], n) for runs in in_chain], axis=1),
        learner_beside_weights_s=summed(step[through], seconds[through], n),
        chain_of=chain_of,
        sets=(step, mask, seconds),
        untold=activity.untold,
    )


def stage_rows(
    activity: Activity, steps: Steps, breakdown: Breakdown, overlap_known: bool = True
) -> tuple[StageRow, ...]:
    """Rows of all stages that were seen, in the order of the vocabulary, `wait` among them. Without
    `overlap_known` nobody knows what ran at once, and `hidden_s` is of no step."""
    steady = list(steps.steady)
    step_s = float(breakdown.steps_s[steady].sum())
    told = not breakdown.untold
    rows = []
    for stage in Stage:
        spans = activity.spans_of_stage.get(stage, 0)
        if stage is Stage.STEP or not (spans or stage in activity.from_tables):
            continue
        tau_s = breakdown.tau_s[steady, stage]
        exposed_s = breakdown.exposed_s[steady, stage]
        rows.append(
            StageRow(
                stage=stage,
                name=word(stage),
                symbol=STAGE_SYMBOLS.get(stage, ""),
                spans=spans,
                processes=activity.processes_of_stage.get(stage, 0),
                tau_s=spread(tau_s if stage not in breakdown.untold else []),
                exposed_s=spread(exposed_s if told else []),
                hidden_s=spread(tau_s - exposed_s if overlap_known and told else []),
                share=float(exposed_s.sum()) / step_s if step_s and told else float("nan"),
            )
        )
    return tuple(rows)


def cut_steps(
    stages: Intervals, starts: Ints, ends: Ints, since: int, until: int
) -> tuple[Ints, Ints, Seconds]:
    """`(step, set of running stages, seconds)` between two moments, one row for each set that
    occurs in a step; the intervals of a stage do not overlap."""
    bit = np.left_shift(1, stages.group)
    edge = np.zeros(len(starts), np.int64)
    times = np.concatenate([stages.start, stages.end, starts, ends]).clip(since, until)
    order = np.argsort(times, kind="stable")
    times = times[order]
    mask = np.cumsum(np.concatenate([bit, -bit, edge, edge])[order])[:-1]
    left, length = times[:-1], np.diff(times)
    step = np.searchsorted(starts, left, side="right") - 1
    inside = (step >= 0) & (length > 0)
    inside[inside] &= left[inside] < ends[step[inside]]
    return _added(step[inside], mask[inside], length[inside] / 1e9)


def _added(step: Ints, mask: Ints, seconds: Seconds) -> tuple[Ints, Ints, Seconds]:
    """Adds up the seconds of each step and set."""
    keys, which = np.unique(step << STAGES | mask, return_inverse=True)
    return keys >> STAGES, keys & (1 << STAGES) - 1, summed(which, seconds, len(keys))


def _beside(mask: Ints, bits: int) -> Ints:
    """How many of the stages (bit = stage code) are in the set beyond the first."""
    count = ((mask[:, None] & bits) >> np.arange(STAGES) & 1).sum(axis=1)
    return np.asarray(np.maximum(count - 1, 0), np.int64)


def _runs(mask: Ints, bits: int) -> Bools:
    """Where any of the stages (bit = stage code) is in the set."""
    return (mask & bits).astype(np.bool_)
