"""How stale what was trained on was, as the run went on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.samples import TRAINED_USES
from rltrace.analysis.steps import Steps

if TYPE_CHECKING:
    from rltrace.trace.run import Run


@dataclass(frozen=True)
class LagsOfSteps:
    """The trajectories trained on (under each version anew) in the steps from `first` to `last`
    (numbers; -1: the run has no steps): `counts[i]` have a lag within `LagHistory.lags[i]`, and
    `unknown` one that nobody recorded."""

    first: int
    last: int
    counts: tuple[int, ...]
    unknown: int

    @property
    def trajectories(self) -> int:
        """All of them."""
        return sum(self.counts) + self.unknown


@dataclass(frozen=True)
class LagHistory:
    """`lags` are ranges of lag in policy versions, both ends included."""

    lags: tuple[tuple[int, int], ...]
    steps: tuple[LagsOfSteps, ...]


def lag_history(run: Run, steps: Steps, most_columns: int, most_rows: int) -> LagHistory | None:
    """At most `most_columns` groups of steps and `most_rows` ranges of lags; None where nothing was
    trained on. Lag: version that trained minus version of the first token, as in `staleness`. What
    was trained on between steps counts to the step before."""
    rows = run.ask_columns(f"""
        {TRAINED_USES}
        select time_ns, (case when version >= 0 then version - first_version end)::bigint as lag
        from trained order by time_ns
    """)
    time = np.asarray(rows["time_ns"], np.int64)
    if not len(time):
        return None
    lag = np.ma.masked_array(rows["lag"])
    known = ~np.ma.getmaskarray(lag)
    values = np.asarray(lag.filled(0), np.int64)
    windows = steps.windows
    begins = np.array([w.start_ns for w in windows], np.int64)
    place = np.clip(np.searchsorted(begins, time, side="right") - 1, 0, max(0, len(windows) - 1))
    width = max(1, -(-len(windows) // most_columns))
    column = place // width
    ranges = _ranges(values[known], most_rows)
    row = np.searchsorted([low for low, _ in ranges], values, side="right") - 1
    found = []
    for one in np.unique(column).tolist():
        here = column == one
        counts = np.bincount(row[here & known], minlength=len(ranges))
        of = windows[one * width : (one + 1) * width]
        first, last = (of[0].step, of[-1].step) if of else (-1, -1)
        found.append(LagsOfSteps(first, last, tuple(counts.tolist()), int((here & ~known).sum())))
    return LagHistory(tuple(ranges), tuple(found))


def _ranges(lags: np.ndarray, most: int) -> list[tuple[int, int]]:
    if not len(lags):
        return []
    least, largest = int(lags.min()), int(lags.max())
    wide = -(-(largest - least + 1) // most)
    return [(low, low + wide - 1) for low in range(least, largest + 1, wide)]
