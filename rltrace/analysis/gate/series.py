"""What a gate keeps of a run: a column a quantity, a row a step.

All complete steps are kept, warm-up too: which of them count is found when runs are compared
(`panel`). Columns add up: `goodput` is the sum of `useful_tokens` over that of `length_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.chains import Seconds
from rltrace.analysis.gate import metrics as m
from rltrace.analysis.intervals import Ints
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.samples import TRAINED_USES
from rltrace.analysis.step_figures import StepFigures, edges_of, placed, step_figures
from rltrace.analysis.steps import Steps
from rltrace.analysis.syncs import Update

if TYPE_CHECKING:
    from rltrace.trace.run import Run

MOST_STEPS = 400
"""Of a longer run the last ones are kept: its warm-up is long behind."""
MOST_LAG = 64
"""Lags are counted one by one up to this one, and all larger ones with it."""


@dataclass(frozen=True, eq=False)
class RunSeries:
    """A run by step. `steps` are the steps' numbers in the order of time (int64); each of `columns`
    is as long (float64): seconds, tokens, bytes or counts of that step; a column that nobody
    recorded is absent, a value that is unknown is NaN. `run` is the run's id, `start_ns` when it
    began (Unix)."""

    run: str
    start_ns: int
    steps: Ints
    columns: Mapping[str, NDArray[np.float64]]

    @property
    def size(self) -> int:
        """How many steps."""
        return len(self.steps)

    def is_same(self, other: RunSeries) -> bool:
        """Whether it is the same run, whatever it is called: no two take the same time in each
        step (to the digits that a baseline keeps)."""
        mine, its = self.columns.get(m.LENGTH), other.columns.get(m.LENGTH)
        if mine is None or its is None or self.size != other.size:
            return False
        return self.start_ns == other.start_ns and np.allclose(mine, its, rtol=1e-5, atol=0)


def series_of(run: Run) -> RunSeries:
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
    tau_s = analysis.breakdown.tau_s
    busy_s = {m.BUSY + name: tau_s[:, stage] for name, stage in m.STAGES.items()}
    columns = {
        **columns_of(figures),
        **{name: column for name, column in busy_s.items() if column.any()},
        **_lags(run, steps),
        **_syncs(analysis.updates, steps),
    }
    kept = {name: column[-MOST_STEPS:] for name, column in columns.items()}
    return RunSeries(name, began, numbers[-MOST_STEPS:], kept)


def columns_of(figures: StepFigures) -> dict[str, Seconds]:
    """The columns of all that is known of each step by itself."""
    columns = dict(vars(figures))  # most have the names of the figures
    exposed_s, device_s = columns.pop("parts_s"), columns.pop("device_s")
    columns |= {m.STEPS: np.ones(figures.steps), m.DEVICES: device_s}
    columns |= {m.EXPOSED + name: seconds for name, seconds in exposed_s.items()}
    return {name: column for name, column in columns.items() if not np.isnan(column).all()}


def _lags(run: Run, steps: Steps) -> dict[str, Seconds]:
    """Samples trained on in each step (under each version anew), by their lag: a column `lag.N` for
    each lag N."""
    rows = run.ask_columns(f"""
        {TRAINED_USES}
        select time_ns as at, least(version - first_version, {MOST_LAG}) as lag
        from trained where version >= 0 and first_version is not null
    """)
    times, lags = (np.asarray(rows[name], np.int64) for name in ("at", "lag"))
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
    size = len(steps.windows)
    kept = [updates[i] for i in known]
    columns = {
        m.SYNCS: np.bincount(place, minlength=size).astype(float),
        m.SYNC_S: np.bincount(place, [u.seconds for u in kept], size),
    }
    if kept and all(u.bytes >= 0 for u in kept):
        columns[m.SYNC_BYTES] = np.bincount(place, [float(u.bytes) for u in kept], size)
    return columns
