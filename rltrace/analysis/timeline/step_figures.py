"""What each steady step took and did, for comparing two runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.figures.goodput import USEFUL_BY_TIME
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.timeline.intervals import Ints
from rltrace.analysis.timeline.stage_chains import Seconds
from rltrace.analysis.timeline.stages import Breakdown
from rltrace.analysis.timeline.steps import Steps
from rltrace.analysis.trajectories.freshness import ess_by_step, ratio_sums
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.read.trajectory_lifecycle import DECIDED_SAMPLES
from rltrace.trace.vocabulary import Stage, word

BETWEEN, UNATTRIBUTED = "between steps", "unattributed"  # as baselines have them


@dataclass(frozen=True, eq=False)
class StepFigures:
    """Figures by steady step; NaN: unknown. `length_s` is from its begin to that of the next step;
    `parts_s` are exposed seconds by stage (with "wait", "unattributed" and "between steps") that
    add up to it. Tokens and samples are those that ended, or were trained on, in that time.
    `decided_tokens` are of samples that the learner trained on or dropped then, and of those that
    ended then and never met it. `ess` is ESS / N, `reward` the mean verdict. `work_s` of the
    `device_s` device-seconds were work."""

    length_s: Seconds
    parts_s: dict[str, Seconds]
    generated_tokens: Seconds
    generated_samples: Seconds
    trained_tokens: Seconds
    useful_tokens: Seconds
    decided_tokens: Seconds
    ess: Seconds
    reward: Seconds
    work_s: Seconds
    device_s: Seconds

    @property
    def steps(self) -> int:
        return len(self.length_s)


def step_figures(analysis: RunAnalysis, steps: Steps) -> StepFigures | None:
    """With these of its steps as steady ones; None where no complete step was recorded."""
    run, breakdown = analysis.run, analysis.breakdown
    steady = list(steps.steady)
    if steps.whole_run or not steady:
        return None
    edges = edges_of(steps)
    length_s = np.diff(np.append(*edges)) / 1e9
    samples, tokens = _generated(run, edges)
    trained, useful = _sums(run, USEFUL_BY_TIME, edges, ("tokens", "useful"))
    decided = f"{DECIDED_SAMPLES} select decided_ns as at, tokens * weight as tokens from decided"
    unknown, devices = np.full(len(steady), math.nan), analysis.devices.count
    work = analysis.busy if devices else None
    return StepFigures(
        length_s=length_s,
        parts_s=_parts(breakdown, steady, length_s),
        generated_tokens=tokens,
        generated_samples=samples,
        trained_tokens=trained,
        useful_tokens=useful,
        decided_tokens=_sums(run, decided, edges, ("tokens",))[0],
        ess=_ess(run, [steps.windows[i].step for i in steady]),
        reward=_reward(run, edges),
        work_s=unknown if work is None else devices * (work.work_s / work.count)[steady],
        device_s=length_s * devices if devices else unknown,
    )


def _parts(breakdown: Breakdown, steady: list[int], length_s: Seconds) -> dict[str, Seconds]:
    exposed = {stage: breakdown.exposed_s[steady, stage] for stage in Stage}
    return {
        **{word(s): parts for s, parts in exposed.items() if s is not Stage.STEP and parts.any()},
        UNATTRIBUTED: breakdown.untraced_s[steady],
        BETWEEN: length_s - breakdown.steps_s[steady],
    }


Edges = tuple[Ints, int]
"""When the steady steps begin, and when the last one ends (Unix ns)."""


def edges_of(steps: Steps) -> Edges:
    """Errors: `IndexError` where there is no steady step."""
    steady = list(steps.steady)
    return steps.starts_ns[steady], int(steps.ends_ns[steady][-1])


def placed(times: Ints, edges: Edges) -> tuple[Ints, Ints]:
    """The rows that lie in a step, and the place of its step."""
    begins, end = edges
    rows = np.flatnonzero((times >= begins[0]) & (times < end))
    return rows, np.searchsorted(begins, times[rows], side="right") - 1


def _sums(run: OpenedRun, query: str, edges: Edges, columns: tuple[str, ...]) -> list[Seconds]:
    """Sums of columns by step; NaN where the query has no row at all."""
    found = run.ask_columns(query)
    times = np.asarray(found["at"], np.int64)
    size = len(edges[0])
    if not len(times):
        return [np.full(size, math.nan) for _ in columns]
    rows, place = placed(times, edges)
    values = (np.asarray(found[name], np.float64)[rows] for name in columns)
    return [np.bincount(place, column, size).astype(np.float64) for column in values]


def _generated(run: OpenedRun, edges: Edges) -> tuple[Seconds, Seconds]:
    query = """
        select end_ns as at, 1.0 as n, greatest(response_tokens, 0)::double as tokens
        from raw_trajectories where start_ns > 0 and end_ns > 0"""
    samples, tokens = _sums(run, query, edges, ("n", "tokens"))
    return samples, tokens if tokens.any() else np.full(len(tokens), math.nan)


def _reward(run: OpenedRun, edges: Edges) -> Seconds:
    query = """
        select end_ns as at, 1.0 as n, value from raw_rewards
        where start_ns > 0 and end_ns > 0 and outcome <= 0 and isfinite(value)"""
    count, total = _sums(run, query, edges, ("n", "value"))
    with np.errstate(all="ignore"):
        return np.where(count > 0, total / count, math.nan)


def _ess(run: OpenedRun, steps: list[int]) -> Seconds:
    sums = ratio_sums(run)
    if not len(sums.step):
        return np.full(len(steps), math.nan)
    shares, _ = ess_by_step(sums)
    known = dict(zip(np.unique(sums.step).tolist(), shares.tolist(), strict=True))
    return np.array([known.get(step, math.nan) for step in steps])
