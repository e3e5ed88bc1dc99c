"""How runs differ from the runs of a baseline: a difference with its error, in which the difference
between runs of the same code is counted.

Steps of one run say nothing of that (Kalibera and Jones 2013, "Rigorous benchmarking in reasonable
time"). So a run is one observation; its variance s² is that of the runs at hand, moderated by a
prior of a few degrees of freedom (Smyth 2004, doi 10.2202/1544-6115.1027, equation 6):

    s̃² = (f₀ (τ₀² + v) + (m - 1) s_m² + (k - 1) s_k²) / (f₀ + m + k - 2)

for m runs of the baseline and k that are judged. v is what the steps give one run's figure by
chance (a block bootstrap), τ₀ what starts of a job add: `TAU`, measured on the built-in trainer,
whose starts differ by 0.1 to 2 %. The difference of the means has the variance s̃² (1/m + 1/k) and
Student's t with f₀ + m + k - 2 degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.gate.panel import Panel
from rltrace.analysis.stats.interval import UNKNOWN, Interval, around
from rltrace.analysis.stats.resampling import Floats
from rltrace.analysis.stats.student import quantile, tail

TAU = 0.01
"""Standard deviation between starts of the same job, as a share of the figure."""
FREEDOM = 2.0
LEVEL = 0.95
_EXACT = 1e-18  # a variance that is none but for rounding
_MOST_FREEDOM = 4.0  # of the prior, however many steps say what chance does in one run


@dataclass(frozen=True)
class Contrast:
    """Judged minus baseline: `value` with its standard `error` (Student's t with `freedom`).
    `chance` is the variance that steps give the figure of one judged run, `of_starts` that between
    starts of the job."""

    value: float
    error: float
    freedom: float
    chance: float
    of_starts: float

    @property
    def known(self) -> bool:
        """Whether there is a difference, with an error."""
        return not math.isnan(self.value) and not math.isnan(self.error)

    def chance_of_none(self, sign: int) -> float:
        """The p-value of "`sign` times the difference is at most 0", one-sided."""
        beyond = sign * self.value
        if not self.error > 0:
            return 0.0 if beyond > _EXACT else 1.0
        return tail(beyond / self.error, self.freedom)

    def interval(self, level: float = LEVEL) -> Interval:
        """The two-sided interval."""
        if not self.known:
            return UNKNOWN
        return around(self.value, quantile((1 + level) / 2, self.freedom) * self.error)

    def mapped(self, by: Callable[[float], float]) -> Interval:
        """The interval in another unit, by a function that rises or falls."""
        found = self.interval()
        value, one, other = (by(x) for x in (found.value, found.low, found.high))
        return Interval(value, min(one, other), max(one, other))


def contrast(panel: Panel, figures: Floats, tau: float = TAU, logs: bool = True) -> Contrast:
    """The contrast of a figure as `Panel.figures` gives it: of its logarithms, or of the figure
    itself with `tau` in its own unit. Unknown (NaN) where a run does not have it, or has a 0 where
    logarithms are asked for."""
    m, k = panel.baseline, len(panel.runs) - panel.baseline
    if logs:
        with np.errstate(all="ignore"):
            figures = np.log(figures)
    values, draws = figures[0], figures[1:]
    if not np.isfinite(values).all():
        return Contrast(math.nan, math.nan, 1.0, math.nan, math.nan)
    chance_m, chance_k = _chance(panel, draws - values)
    base, judged = values[:m], values[m:]
    if chance_m < _EXACT:  # bytes of an update, a share of 1: what no start changes
        tau, chance_m = 0.0, 0.0
    prior = tau * tau + chance_m
    freedom = FREEDOM
    if prior > 0:
        freedom = prior**2 / (tau**4 / FREEDOM + chance_m**2 / max(1, min(panel.steps) - 1))
    freedom = min(freedom, _MOST_FREEDOM)
    squares = sum(float(((x - x.mean()) ** 2).sum()) for x in (base, judged))
    all_freedom = freedom + m + k - 2
    variance = (freedom * prior + squares) / all_freedom
    of_judged = max(variance - chance_m, 0.0) + chance_k
    return Contrast(
        value=float(judged.mean() - base.mean()),
        error=math.sqrt(variance / m + of_judged / k),
        freedom=all_freedom,
        chance=chance_k,
        of_starts=max(variance - chance_m, 0.0),
    )


def _chance(panel: Panel, draws: Floats) -> tuple[float, float]:
    """The variance that steps give the figure of a run: `(of the baseline's, of the judged)`."""
    known = draws[np.isfinite(draws).all(axis=1)]
    if len(known) < 2:
        return 0.0, 0.0
    correction = np.array([panel.widening * n / max(1, n - 1) for n in panel.steps])
    if panel.paired:
        shared = float(known.var(axis=1, ddof=1).mean() * correction[0])
        return shared, shared
    each = known.var(axis=0) * correction
    return float(each[: panel.baseline].mean()), float(each[panel.baseline :].mean())
