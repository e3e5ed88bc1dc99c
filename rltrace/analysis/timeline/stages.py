"""Where the time of the steps went, stage by stage, and which stalled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from rltrace.analysis.alarms.alarm import LOST_SHARE, STALL_TIMES
from rltrace.analysis.stats.confidence_interval import Spread, spread
from rltrace.analysis.timeline.intervals import Floats, Intervals, Ints, of_spans, union
from rltrace.analysis.timeline.process_intervals import CODES, Activity
from rltrace.analysis.timeline.stage_chains import (
    ALONE_SHARE,
    STAGES,
    Chain,
    chains_of,
    exposed_stage,
    sides_of,
    summed,
    waited_for,
)
from rltrace.analysis.timeline.steps import FEWEST_ALIKE, Steps, Window, held_against
from rltrace.trace.vocabulary import STAGE_SYMBOLS, Stage, word

TYPICAL_PARTS = 240  # many numbers of columns divide it


@dataclass(frozen=True)
class StageRow:
    """A stage over the steady steps; seconds a step. `tau_s` is the union of its intervals over all
    processes, `exposed_s` the part charged to it, `share` that over the step."""

    stage: Stage
    name: str
    symbol: str
    spans: int
    processes: int
    tau_s: Spread
    exposed_s: Spread
    overlapped_s: Spread
    share: float


@dataclass(frozen=True)
class Breakdown:
    """Seconds by step (place in `Steps.windows`) and stage code. `exposed_s`, `wait` included, and
    `untraced_s` add up to `steps_s`. `sets` has the seconds of sets of stages that ran at once:
    `(step, bits, seconds)`. What adds up is of one chain in `chain_of`; `side_of` is whose work it
    is, wherever it runs."""

    steps_s: Floats
    tau_s: Floats
    exposed_s: Floats
    untraced_s: Floats
    chain_of: dict[Stage, Chain]
    side_of: dict[Stage, Chain]
    sets: tuple[Ints, Ints, Floats]

    def runs_s(self, stages: Iterable[Stage], without: Iterable[Stage] = ()) -> Floats:
        """How long any of these stages ran, by step, and none of the others (but structure)."""
        step, mask, seconds = self.sets
        bits, others = (sum(1 << stage for stage in some) for some in (stages, without))
        kept = (mask & bits != 0) & (mask & others & ~(1 << Stage.OTHER) == 0)
        return summed(step[kept], seconds[kept], len(self.steps_s))

    def chains_s(self, *chains: Chain) -> Floats:
        """How long stages of each of these sides ran at once, by step, but for structure."""
        step, mask, seconds = self.sets
        kept = np.logical_and.reduce([mask & self._bits(chain) != 0 for chain in chains])
        return summed(step[kept], seconds[kept], len(self.steps_s))

    @property
    def beside_s(self) -> Floats:
        """How long stages of one side ran beside another of it, by step."""
        step, mask, seconds = self.sets
        beside = sum(_beside(mask, self._bits(chain)) for chain in Chain)
        return summed(step, seconds * beside, len(self.steps_s))

    def _bits(self, chain: Chain) -> int:
        return sum(1 << s for s, of in self.side_of.items() if of is chain) & ~(1 << Stage.OTHER)


def break_down(activity: Activity, steps: Steps) -> Breakdown:
    """Cuts the steps at every change of what runs, and charges each piece to a stage."""
    starts, ends = steps.starts_ns, steps.ends_ns
    steps_s = (ends - starts) / 1e9
    least_ns, later, parts = ALONE_SHARE * 1e9 * float(steps_s.sum()) / max(1, len(steps_s)), 0, []
    for since, until, stages in activity.by_place(activity.first_ns, activity.last_ns + 1):
        part, later = cut_steps(stages, starts, ends, (since, until), least_ns, later)
        parts.append(part)
    step, placed, seconds = _added(*map(np.concatenate, zip(*parts, strict=True)))
    own, others = placed >> CODES & _ALL, placed & _ALL
    mask = own | others
    n = len(steps_s)
    ran = (summed(step, seconds * (mask >> stage & 1), n) for stage in range(STAGES))
    side_of = sides_of(mask, seconds, activity.by_trainers)
    chain_of = chains_of(own, others, seconds, side_of)
    waited = placed >> 2 * CODES
    stage_of = exposed_stage(step, own, others, waited, seconds, steps_s, chain_of)
    place = step * (STAGES + 1) + stage_of + 1
    charged = summed(place, seconds, n * (STAGES + 1)).reshape(n, STAGES + 1)
    tau_s, exposed_s, untraced_s = np.stack([*ran], axis=1), charged[:, 1:], charged[:, 0]
    sets = step, mask, seconds
    return Breakdown(steps_s, tau_s, exposed_s, untraced_s, chain_of, side_of, sets)


def stage_rows(
    activity: Activity, steps: Steps, breakdown: Breakdown, overlap_known: bool = True
) -> tuple[StageRow, ...]:
    """All stages that were seen; without `overlap_known` nothing is known to be overlapped."""
    steady = list(steps.steady)
    step_s = float(breakdown.steps_s[steady].sum())
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
                tau_s=spread(tau_s),
                exposed_s=spread(exposed_s),
                overlapped_s=spread(tau_s - exposed_s if overlap_known else []),
                share=float(exposed_s.sum()) / step_s if step_s else float("nan"),
            )
        )
    return tuple(rows)


_ALL = (1 << CODES) - 1


def cut_steps(
    stages: Intervals, starts: Ints, ends: Ints, between: tuple[int, int], least_ns: float,
    later: int,
) -> tuple[tuple[Ints, Ints, Floats], int]:  # fmt: skip
    """`(step, set of running stages by place and who is waited for, seconds)` between two moments,
    by step and set; and who goes on alone first, as `waited_for` has it."""
    since, until = between
    bit = np.left_shift(1, stages.group)
    edge = np.zeros(len(starts), np.int64)
    times = np.concatenate([stages.start, stages.end, starts, ends]).clip(since, until)
    order = np.argsort(times, kind="stable")
    times = times[order]
    mask = np.cumsum(np.concatenate([bit, -bit, edge, edge])[order])[:-1]
    left, length = times[:-1], np.diff(times)
    if len(mask) and bool((stages.group >= CODES).any()):
        own, others = mask >> CODES, mask & _ALL
        waited, later = waited_for(own, others, times, least_ns, later)
        mask |= waited << 2 * CODES
    step = np.searchsorted(starts, left, side="right") - 1
    inside = (step >= 0) & (length > 0)
    inside[inside] &= left[inside] < ends[step[inside]]
    return _added(step[inside], mask[inside], length[inside] / 1e9), later


def _added(step: Ints, placed: Ints, seconds: Floats) -> tuple[Ints, Ints, Floats]:
    bits = 2 * CODES + 2
    keys, which = np.unique(step << bits | placed, return_inverse=True)
    return keys >> bits, keys & (1 << bits) - 1, summed(which, seconds, len(keys))


def _beside(mask: Ints, bits: int) -> Ints:
    """How many of the stages (bit = stage code) are in the set beyond the first."""
    count = ((mask[:, None] & bits) >> np.arange(STAGES) & 1).sum(axis=1)
    return np.asarray(np.maximum(count - 1, 0), np.int64)


@dataclass(frozen=True)
class TypicalStep:
    """The steady step nearest to the median length. `busy_shares` has by stage how much of each of
    its `TYPICAL_PARTS` any process was in it."""

    step: int
    step_s: float
    busy_shares: dict[str, tuple[float, ...]]


def typical_step(activity: Activity, steps: Steps) -> TypicalStep | None:
    """The whole run where it has no steps; None where there is neither."""
    steady = [steps.windows[i] for i in steps.steady]
    if not steady:
        return None
    lengths = np.array([window.length_s for window in steady])
    window = steady[int(np.argmin(np.abs(lengths - np.median(lengths))))]
    busy = _busy(activity, window)
    shares = {word(stage): tuple(busy[stage].tolist()) for stage in Stage if busy[stage].any()}
    return TypicalStep(window.step, window.length_s, shares)


def _busy(activity: Activity, window: Window) -> Floats:
    """The share of each part of a step in which a stage ran. Shape (stages, parts)."""
    length = window.end_ns - window.start_ns
    edges = np.linspace(0, length, TYPICAL_PARTS + 1)
    ran = np.zeros((len(Stage), len(edges)))
    for since, until, pieces in activity.slices(window.start_ns, window.end_ns):
        start, end = (t.clip(since, until) - window.start_ns for t in (pieces.start, pieces.end))
        stages = union(of_spans(pieces.group, start, end, pieces.lane))
        for code in np.unique(stages.group):
            ran[code] += stages.take(stages.group == code).until(edges)
    with np.errstate(all="ignore"):
        share = np.diff(ran, axis=1) / (length / TYPICAL_PARTS)
    return np.asarray(np.nan_to_num(share).clip(0, 1))


# --- Stalled steps say nothing of what the others wait for. So a run is judged by its longest
# stretch without one where the stalls are few or lie together at one end, took the smaller part of
# the time, and were held up by work that holds up every step. Else long steps may be how the job is
# made (samples for ten updates come at once), and nobody can tell which.

_LEAST_STALL_S = 0.1  # less beyond the usual is the scheduler's doing on a busy machine
_LONG_BY_NATURE = [Stage.EVAL, Stage.CHECKPOINT]
_NO_WORK = (Stage.WAIT, Stage.OTHER, Stage.STEP)
_FEW = 10  # of so many steps one may stall; one may in any run
_MOST_SHARE = 0.5


@dataclass(frozen=True)
class Stalls:
    """`places` of the steps that stalled in `Steps.windows`. They took `took_s` seconds where
    `usual_s` are usual, which is `lost_share` of the time of the steps after warm-up. `stage` has
    most of what was more (None: no span). `left_out`: whether the run is judged without them."""

    places: tuple[int, ...]
    took_s: float
    usual_s: float
    lost_share: float
    stage: Stage | None
    left_out: bool

    @property
    def grave(self) -> bool:
        return self.lost_share >= LOST_SHARE


def find_stalls(steps: Steps, breakdown: Breakdown) -> Stalls | None:
    settled = [] if steps.whole_run else list(steps.settled)
    own_s = _own_s(breakdown)
    generates = [window.generates for window in steps.windows]
    alike = held_against(settled, generates)
    usually = {one: np.median(own_s[alike[one]]) if alike[one] else np.nan for one in alike}
    alike_s = np.where(generates, usually[True], usually[False])
    least_s = np.maximum(STALL_TIMES * alike_s, alike_s + _LEAST_STALL_S)  # NaN: nothing is longer
    stalled = [i for i in settled if own_s[i] > least_s[i]]
    while stalled and stalled[0] == settled[0]:  # slow first steps are warm-up, in a short run too
        stalled, settled = stalled[1:], settled[1:]
    if not stalled:
        return None
    took_s, usually_s = float(own_s[stalled].sum()), float(alike_s[stalled].sum())
    found = Stalls(
        places=tuple(stalled),
        took_s=took_s,
        usual_s=usually_s,
        lost_share=(took_s - usually_s) / float(breakdown.steps_s[settled].sum()),
        stage=_where(stalled, generates, alike, breakdown),
        left_out=False,
    )
    return replace(found, left_out=found.grave and _can_do_without(steps, breakdown, found))


def without_stalls(steps: Steps, breakdown: Breakdown) -> Steps:
    """`steps` to be judged without its stalls, where these cost much and that is possible."""
    found = find_stalls(steps, breakdown)
    return replace(steps, stalled=found.places) if found and found.left_out else steps


def usual_step_s(steps: Steps, breakdown: Breakdown) -> float:
    """Median length of a step after warm-up (of those that generate, if only some do) without
    evaluation and checkpoints; NaN: too few."""
    settled = list(steps.settled)
    if steps.whole_run or len(settled) < FEWEST_ALIKE:
        return float("nan")
    long = [i for i in settled if steps.windows[i].generates]
    return float(np.median(_own_s(breakdown)[long or settled]))


def _own_s(breakdown: Breakdown) -> Floats:
    return np.asarray(breakdown.steps_s - breakdown.exposed_s[:, _LONG_BY_NATURE].sum(axis=1))


def _where(
    stalled: list[int], generates: list[bool], alike: dict[bool, list[int]], breakdown: Breakdown
) -> Stage | None:
    """The stage that has most of what the stalled steps took more than usual ones."""
    spent_s = np.column_stack([breakdown.exposed_s, breakdown.untraced_s])
    more_s = np.zeros(spent_s.shape[1])
    for kind, peers in alike.items():
        mine = [i for i in stalled if generates[i] == kind]
        if mine:
            more_s += (spent_s[mine] - np.median(spent_s[peers], axis=0)).sum(axis=0)
    more_s[_LONG_BY_NATURE] = 0.0
    worst = int(np.argmax(more_s[:-1]))
    return None if more_s[-1] > more_s[worst] else Stage(worst)


def _can_do_without(steps: Steps, breakdown: Breakdown, found: Stalls) -> bool:
    settled, stalled = list(steps.settled), list(found.places)
    left = list(replace(steps, stalled=found.places).unbroken)
    few = len(stalled) <= max(1, len(settled) // _FEW)
    # Half of the run or more, from its begin or to its end, has no stall: long steps that are of
    # the job come again and again.
    at_an_end = bool(left) and (left[0] == settled[0] or left[-1] == settled[-1])
    if len(left) < FEWEST_ALIKE or not (few or (at_an_end and 2 * len(left) >= len(settled))):
        return False
    took_s = float(breakdown.steps_s[stalled].sum())
    if took_s > _MOST_SHARE * float(breakdown.steps_s[settled].sum()):
        return False
    if found.stage is None or found.stage in _NO_WORK:
        return True
    usually_s = float(breakdown.tau_s[left, found.stage].sum())
    exposed_s = float(breakdown.exposed_s[left, found.stage].sum())
    return exposed_s > usually_s / 2  # else it is work for other steps, which shows in some


_MOST_GAPS = 100


def between_steps(activity: Activity, steps: Steps) -> dict[str, float]:
    """Stages that run between the steady steps -> how long, in seconds a step, the longest first.
    Over the first hundred of them; those that take under a tenth of that time are left out."""
    gaps = [(a.end_ns, b.start_ns) for a, b in pairwise(steps.windows[i] for i in steps.steady)]
    gaps = [(start, end) for start, end in gaps if end > start][:_MOST_GAPS]
    found = dict[Stage, int]()
    for start, end in gaps:
        for begin, until, intervals in activity.slices(start, end):
            low, high = max(begin, start), min(until, end)
            lengths = np.minimum(intervals.end, high) - np.maximum(intervals.start, low)
            for stage, length in zip(intervals.group.tolist(), lengths.tolist(), strict=True):
                found[Stage(stage)] = found.get(Stage(stage), 0) + max(0, length)
    whole_ns = sum(end - start for start, end in gaps)
    often = len(list(pairwise(steps.steady))) or 1
    much = {stage: ns for stage, ns in found.items() if ns > 0.1 * whole_ns}
    ordered = sorted(much.items(), key=lambda item: -item[1])
    return {word(stage): ns / 1e9 / min(often, _MOST_GAPS) for stage, ns in ordered}
