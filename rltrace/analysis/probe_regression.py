"""The lengths of steps regressed on the dilations that a probe drew for them (`probe`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.stats.interval import UNKNOWN, Interval
from rltrace.analysis.stats.least_squares import Fit, Floats, fit

_ROWS_A_COLUMN = 6
_OUTLIER = 8.0  # in deviations from the median: such a step is none of the usual ones


@dataclass(frozen=True)
class Regression:
    """Seconds on the critical path by stage; `step_s` is a step without doses, and `spent` the part
    of the time that the doses took."""

    on_path_s: dict[str, Interval]
    step_s: float
    spent: Interval


def regress(
    steps_s: Floats,
    dilations: dict[str, Floats],
    work: Sequence[Floats],
    used: Sequence[int],
    lags: int,
) -> Regression:
    """The lengths of the steps `used` on the dilations of the same and of `lags` earlier steps, on
    a line over time, and on those columns of `work` that tell long steps from short ones. What work
    a step had was not changed by a dose: it takes noise away, and no more (Lin 2013). Figures are
    unknown where the steps do not suffice."""
    rows = np.array(used, np.int64)
    y = steps_s[rows] if len(rows) else np.zeros(0)
    length_s = float(y.mean()) if len(rows) else math.nan
    columns = [f[rows - lag] for f in dilations.values() for lag in range(lags + 1)]
    if not len(rows) or not columns:
        return Regression({}, length_s, UNKNOWN)
    line = (rows - rows.mean()) / len(steps_s)
    x = np.stack([*columns, np.ones(len(rows)), line], axis=1)
    x = _with_work(x, y, [column[rows] for column in work])
    found: Fit | None = fit(x, y)
    if found is None:
        return Regression({}, length_s, UNKNOWN)
    doses = np.arange(x.shape[1]) < len(columns)
    added = found.combined(np.where(doses, x.mean(axis=0), 0.0))
    everywhere = np.zeros(x.shape[1])  # in all steps, those that are not used as well
    everywhere[: len(columns)] = [f.mean() for f in dilations.values() for _ in range(lags + 1)]
    stage = np.arange(x.shape[1]) // (lags + 1)
    on_path = {
        name: found.combined((doses & (stage == place)).astype(np.float64))
        for place, name in enumerate(dilations)
    }
    step_s = length_s - added.value
    return Regression(on_path, step_s, found.combined(everywhere).over(step_s))


def _with_work(x: Floats, y: Floats, work: Sequence[Floats]) -> Floats:
    """`x` with those of the columns that are worth it, the best first: each must lower Schwarz's
    criterion (BIC, 1978), and there is one for every `_ROWS_A_COLUMN` rows at most."""
    left = [column - column.mean() for column in work if column.std() > 1e-9]
    for _ in range(len(y) // _ROWS_A_COLUMN):
        tried = [(_criterion(np.column_stack([x, column]), y), n) for n, column in enumerate(left)]
        best, n = min(tried, default=(math.inf, -1))
        if not best < _criterion(x, y):
            break
        x = np.column_stack([x, left.pop(n)])
    return x


def _criterion(x: Floats, y: Floats) -> float:
    """Schwarz's criterion of a fit, up to a constant; infinite where it is none."""
    rows, columns = x.shape
    if rows <= columns or np.linalg.matrix_rank(x) < columns:
        return math.inf
    residual = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    spread = max(1e-18, float(residual @ residual) / rows)
    return float(rows * math.log(spread) + columns * math.log(rows))


def usable_steps(steps_s: Floats, steady: Sequence[int], lags: int) -> tuple[list[int], int]:
    """Places of the steps that a regression can use, and how many were left out as outliers (a
    hang, a step without generation at the end of the job)."""
    places = [place for place in steady if place >= lags]
    if not places:
        return [], 0
    lengths = steps_s[places]
    middle = float(np.median(lengths))
    deviation = 1.4826 * float(np.median(np.abs(lengths - middle)))
    far = max(_OUTLIER * deviation, 0.5 * middle)
    kept = [place for place in places if abs(steps_s[place] - middle) <= far]
    return kept, len(places) - len(kept)
