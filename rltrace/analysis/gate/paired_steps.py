"""Runs side by side: figures by step, and their chance.

Runs of the same seed do the same work in the same step. So the same step numbers are compared where
the runs have them, and drawn together: what the runs share then leaves the difference between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.figures.weight_updates import Update
from rltrace.analysis.gate import metrics as m
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.resampling import Floats, drawn_counts, mean_block
from rltrace.analysis.timeline.interval_lookup import columns
from rltrace.analysis.timeline.intervals import Ints
from rltrace.analysis.timeline.stage_chains import Seconds
from rltrace.analysis.timeline.step_figures import StepFigures, edges_of, placed, step_figures
from rltrace.analysis.timeline.steps import Steps, warmup_by_margin
from rltrace.analysis.trajectories.staleness import LAG_OF_USES
from rltrace.trace.read.run import OpenedRun

FEWEST = 5  # settled steps below which a run tells nothing of its own noise
_SHARED = 0.8  # runs that share this much of the shortest one's steps are compared by step number


@dataclass(frozen=True, eq=False)
class Panel:
    """Runs of which the first `baseline` are the baseline's, and the rest are judged. `rows` are
    the settled steps of each, `warmup` how many are before them. `counts` is how often each is in
    each draw; `paired` runs are drawn together. `widening` is by how much the variance of means of
    drawn steps falls short: blocks of few steps miss a part of what neighbours share."""

    runs: tuple[RunSeries, ...]
    baseline: int
    rows: tuple[Ints, ...]
    warmup: tuple[int, ...]
    counts: tuple[Floats, ...]
    paired: bool
    widening: float

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(len(rows) for rows in self.rows)

    @property
    def enough(self) -> bool:
        return min(self.steps) >= FEWEST

    @property
    def too_few(self) -> str:
        n = min(self.steps)
        return f"{n} settled step{'s' * (n != 1)}, and at least {FEWEST} are needed of each run"

    def figures(self, metric: m.GateMetric, usual: bool = False) -> Floats:
        """The figure in the metric's unit, a column a run: the first row as it was, others in each
        draw of its steps; NaN: a run lacks it. `usual`: without the stalls of a rate's seconds."""
        names = {metric.of, metric.per}
        if metric.of == m.LAG:
            names = {name for run in self.runs for name in run.columns if name.startswith(m.LAG)}
        tables = [
            {name: run.columns[name][rows] for name in names if name in run.columns}
            for run, rows in zip(self.runs, self.rows, strict=True)
        ]
        for name in names if usual and metric.quantile is None else ():
            if m.is_seconds(name) and all(name in table for table in tables):
                cut = without_stalls([table[name] for table in tables], self.paired)
                for table, column in zip(tables, cut, strict=True):
                    table[name] = column
        of_runs = zip(tables, self.counts, strict=True)
        return np.stack([_figure(*one, metric) for one in of_runs], axis=1)


def panel_of(
    baseline: Sequence[RunSeries], judged: Sequence[RunSeries], settled: bool = False
) -> Panel:
    """The panel of these runs; `settled`: without warm-up already."""
    runs = (*baseline, *judged)
    shared = _shared(runs)
    paired, rows = shared is not None, shared or tuple(np.arange(run.size) for run in runs)
    lengths_s = [run.columns[m.LENGTH][mine] for run, mine in zip(runs, rows, strict=True)]
    left_out = [0] * len(runs)
    if not settled:
        left_out = [warmup_steps(lengths_s if paired else [one]) for one in lengths_s]
    rows = tuple(mine[k:] for mine, k in zip(rows, left_out, strict=True))
    warmup = tuple(int(mine[0]) for mine in rows)
    logs = [_logs(one[k:]) for one, k in zip(lengths_s, left_out, strict=True)]
    if paired:
        table = np.stack(logs)
        logs = list(table - table.mean(axis=0))  # without what the runs share
        block = float(np.median([mean_block(one) for one in logs]))
        counts = (drawn_counts(table.shape[1], block, seed=0),) * len(runs)
    else:
        counts = tuple(drawn_counts(len(one), mean_block(one), i) for i, one in enumerate(logs))
    return Panel(runs, len(baseline), rows, warmup, counts, paired, _widening(logs, counts))


def warmup_steps(lengths_s: Sequence[Floats]) -> int:
    """How many leading steps to leave out of runs of the same steps, by the rule of the report.
    Runs are looked at together: what is chance in one of them is not in all."""
    size = min(len(one) for one in lengths_s)
    return warmup_by_margin(np.exp(np.mean([_logs(one[:size]) for one in lengths_s], 0)).tolist())


def _logs(seconds: Floats) -> Floats:
    return np.log(np.maximum(np.nan_to_num(seconds), 1e-9))


def _widening(logs: Sequence[Floats], counts: Sequence[Floats]) -> float:
    """The variance of a mean of an autoregression of order 1 over that of the draws. Its r is of
    all runs together, without its bias in short series (Marriott and Pope 1954)."""
    known = [(one - one.mean(), drawn) for one, drawn in zip(logs, counts, strict=True)]
    known = [(one, drawn) for one, drawn in known if len(one) >= FEWEST and one @ one > 0]
    if not known:
        return 1.0
    r = float(np.mean([(one[1:] @ one[:-1]) / (one @ one) for one, _ in known]))
    n = float(np.mean([len(one) for one, _ in known]))
    r = min(max(r + (1 + 3 * r) / n, 0.0), 0.9)
    asked = (1 + r) / (1 - r)  # by how much neighbours that are alike widen it
    drawn = np.mean([(w @ one / len(one)).var() * len(one) ** 2 / (one @ one) for one, w in known])
    return max(1.0, asked / float(drawn)) if drawn > 0 else 1.0


def _shared(runs: Sequence[RunSeries]) -> tuple[Ints, ...] | None:
    """The rows of the steps that all runs have; None where these are too few."""
    numbers = [run.steps for run in runs]
    if len(runs) < 2 or any(len(np.unique(n)) < len(n) or (n < 0).any() for n in numbers):
        return None
    common = reduce(np.intersect1d, numbers)
    if len(common) < max(FEWEST, _SHARED * min(len(n) for n in numbers)):
        return None
    return tuple(np.flatnonzero(np.isin(n, common)) for n in numbers)


def _figure(columns: dict[str, Floats], counts: Floats, metric: m.GateMetric) -> Floats:
    weights = np.vstack([np.ones((1, counts.shape[1])), counts])
    if metric.of == m.LAG:
        return _lags(columns, weights, metric.quantile)
    if metric.of not in columns or metric.per not in columns:
        return np.full(len(weights), math.nan)
    of, per = columns[metric.of], columns[metric.per]
    known = ~np.isnan(of) & ~np.isnan(per)
    of, per, weights = of[known], per[known], weights[:, known]
    if not len(of):
        return np.full(len(weights), math.nan)
    if metric.quantile is not None:
        return _quantile(of / np.maximum(per, 1e-9), weights, metric.quantile) * metric.scale
    with np.errstate(all="ignore"):
        return np.asarray((weights @ of) / (weights @ per) * metric.scale, np.float64)


def _quantile(values: Floats, weights: Floats, share: float) -> Floats:
    """Harrell and Davis's quantile (1982), smooth, as a bootstrap needs: a mean of the
    ordered values by how likely each is to be it. A share of 1 is just the largest."""
    order = np.argsort(values)
    ordered, weights = values[order], weights[:, order]
    if share >= 1:
        last = weights.shape[1] - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)
        return np.asarray(ordered[last], np.float64)
    n = len(values)
    below = np.cumsum(weights, axis=1) / np.maximum(weights.sum(axis=1, keepdims=True), 1)
    chance = _beta((n + 1) * share, (n + 1) * (1 - share))
    reached = chance[np.rint(below * (len(chance) - 1)).astype(np.int64)]
    return np.asarray(np.diff(reached, axis=1, prepend=0.0) @ ordered, np.float64)


def _beta(a: float, b: float) -> Floats:
    """The distribution function of a beta distribution, on an even grid from 0 to 1."""
    grid = np.linspace(0.0, 1.0, 4001)
    inner = (grid[1:] + grid[:-1]) / 2
    logs = (a - 1) * np.log(inner) + (b - 1) * np.log1p(-inner)
    density = np.exp(logs - logs.max())
    return np.append(0.0, np.cumsum(density) / density.sum())


def _lags(columns: dict[str, Floats], weights: Floats, quantile: float | None) -> Floats:
    unknown = np.full(len(weights), math.nan)
    if not columns:
        return unknown
    known = sorted((int(name[len(m.LAG) :]), name) for name in columns)
    lags = np.array([lag for lag, _ in known], np.float64)
    samples = weights @ np.stack([columns[name] for _, name in known], axis=1)
    if not samples[0].sum() > 0:
        return unknown
    with np.errstate(all="ignore"):
        shares = np.cumsum(samples / samples.sum(axis=1, keepdims=True), axis=1)
    if quantile is None:
        return np.asarray(np.diff(shares, axis=1, prepend=0.0) @ lags, np.float64)
    return np.asarray(lags[np.argmax(shares >= quantile - 1e-9, axis=1)], np.float64)


# --- single steps that stall, cut to what is usual: they are most of the noise of a mean. So the
# run is looked at without, to tell small slowdowns, and as it was, to tell that it stalls more.

_BEYOND = 4.0  # robust standard deviations
_LEAST = math.log(1.1)  # and a stalled step is at least a tenth longer than is usual
_MOST_ZEROS = 0.2  # a stage that is not in each step has no usual length


def without_stalls(seconds: Sequence[Floats], paired: bool) -> list[Floats]:
    """The columns of runs with stalls cut to the longest usual value. `paired` columns are of the
    same steps: usual is then relative to what the runs share."""
    if any(not len(one) or (~(one > 0)).mean() > _MOST_ZEROS for one in seconds):
        return list(seconds)
    logs = [_logs(one) for one in seconds]
    pattern: Floats | float = 0.0
    if paired:  # what each step is for all runs (the lower of two, as the longer may have stalled)
        table = np.stack(logs)
        centred = np.sort(table - np.median(table, axis=1, keepdims=True), axis=0)
        pattern = centred[(len(logs) - 1) // 2]
    offs = [rest - np.median(rest) for rest in (one - pattern for one in logs)]
    deviation = 1.4826 * float(np.median(np.abs(np.concatenate(offs))))  # of normal values
    most = max(_BEYOND * deviation, _LEAST)
    cut = (np.exp(-np.maximum(off - most, 0.0)) for off in offs)
    return [values * less for values, less in zip(seconds, cut, strict=True)]


# --- the series of a run: all complete steps, as which of them count is found when runs are
# compared. Columns add up: `goodput` is the sum of `useful_tokens` over that of `length_s`.

MOST_STEPS = 400  # of a longer run the last ones are kept: its warm-up is long behind
MOST_LAG = 64  # lags are counted one by one up to this one, and all larger ones with it


@dataclass(frozen=True, eq=False)
class RunSeries:
    """A run by step. `steps` are their numbers in the order of time; each of `columns` is as long:
    seconds, tokens, bytes or counts of that step, NaN where unknown; a column that nobody recorded
    is absent. `run` is the run's id, `start_ns` when it began (Unix)."""

    run: str
    start_ns: int
    steps: Ints
    columns: Mapping[str, NDArray[np.float64]]

    @property
    def size(self) -> int:
        return len(self.steps)

    def is_same(self, other: RunSeries) -> bool:
        """Whether it is the same run: no two take the same time in each step."""
        mine, its = self.columns.get(m.LENGTH), other.columns.get(m.LENGTH)
        if mine is None or its is None or self.size != other.size:
            return False
        return self.start_ns == other.start_ns and np.allclose(mine, its, rtol=1e-5, atol=0)


def series_of(run: OpenedRun) -> RunSeries:
    """The series of `run`; of no step where none was completed."""
    analysis = RunAnalysis(run)
    run, found = analysis.run, analysis.steps
    windows = tuple(replace(window, warmup=False) for window in found.windows)  # all are steady
    steps = replace(found, windows=windows, stalled=(), per_generation=0)
    started = run.meta.get("start_real_ns")
    name = str(run.meta.get("id") or run.path.name)
    began = started if isinstance(started, int) else analysis.activity.first_ns
    figures = step_figures(analysis, steps)
    if figures is None:
        return RunSeries(name, began, np.zeros(0, np.int64), {})
    numbers = np.array([window.step for window in steps.windows], np.int64)
    busy_s = {m.BUSY + name: analysis.breakdown.tau_s[:, stage] for name, stage in m.STAGES.items()}
    columns = columns_of(figures) | {name: s for name, s in busy_s.items() if s.any()}
    columns |= _series_lags(run, steps) | _syncs(analysis.updates, steps)
    kept = {name: column[-MOST_STEPS:] for name, column in columns.items()}
    return RunSeries(name, began, numbers[-MOST_STEPS:], kept)


def columns_of(figures: StepFigures) -> dict[str, Seconds]:
    """The columns of all that is known of each step by itself."""
    columns = dict(vars(figures))  # most have the names of the figures
    exposed_s, device_s = columns.pop("parts_s"), columns.pop("device_s")
    columns |= {m.STEPS: np.ones(figures.steps), m.DEVICES: device_s}
    columns |= {m.EXPOSED + name: seconds for name, seconds in exposed_s.items()}
    return {name: column for name, column in columns.items() if not np.isnan(column).all()}


def _series_lags(run: OpenedRun, steps: Steps) -> dict[str, Seconds]:
    """Samples trained on in each step, under each version: a column `lag.N` for each lag N."""
    times, lags, told = columns(run, LAG_OF_USES)
    times, lags = times[told == 1], np.minimum(lags[told == 1], MOST_LAG)
    known, place = placed(times, edges_of(steps))
    found = {}
    for lag in np.unique(lags[known]).tolist():
        of_lag = place[lags[known] == lag]
        found[f"{m.LAG}{lag}"] = np.bincount(of_lag, minlength=len(steps.windows)).astype(float)
    return found


def _syncs(updates: tuple[Update, ...], steps: Steps) -> dict[str, Seconds]:
    if not updates:
        return {}
    known, place = placed(np.array([u.start_ns for u in updates], np.int64), edges_of(steps))
    kept, size = [updates[i] for i in known], len(steps.windows)
    columns = {
        m.SYNCS: np.bincount(place, minlength=size).astype(float),
        m.SYNC_S: np.bincount(place, [u.seconds for u in kept], size),
    }
    if kept and all(u.bytes >= 0 for u in kept):
        columns[m.SYNC_BYTES] = np.bincount(place, [float(u.bytes) for u in kept], size)
    return columns
