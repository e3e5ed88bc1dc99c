"""Whether a figure got worse than a limit allows: two error rates.

- A *regression* is worse than the baseline surely, and as measured by more than the limit: tested
  against "no worse at all", so an unchanged run is called one at most alpha of the time. (Tested
  against the limit, most of what lies just beyond it would be untold.)
- A *pass* is not worse than the limit, but for a chance of `MISS`.
- Between them it *cannot be told*: `needed` says what would tell.

tests/analysis/gate/test_rates.py holds the rates by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.gate.metrics import HIGHER, PASS, REGRESSION, UNSURE, GateMetric, is_seconds
from rltrace.analysis.gate.paired_steps import FEWEST, Panel
from rltrace.analysis.stats.confidence_interval import UNKNOWN, Interval, around, quantile, tail
from rltrace.analysis.stats.resampling import Floats

MISS = 0.1
_FOR_USUAL = 0.8  # of alpha; the rest is for the run with its stalls
_MOST_TIMES = 50  # steps or runs that nobody has the time for are no advice


@dataclass(frozen=True)
class Change:
    """A figure's change in logarithms, of steps without stalls (`usual`) and as they were (`plain`;
    the same where a figure knows no stalls). `sign` is 1 where more is worse, `edge` the limit in
    logarithms. `normalised` says what the work of the two sides was made equal by (empty: nothing);
    `and_also` has to have regressed too."""

    usual: Contrast
    plain: Contrast
    sign: int
    edge: float
    normalised: str = ""
    and_also: Change | None = None

    @property
    def known(self) -> bool:
        return self.usual.known and self.plain.known

    @property
    def p_value(self) -> float:
        """Of "no worse than the baseline" in all that has to have regressed; NaN: not known."""
        if not self.known:
            return math.nan
        also = self.and_also
        return max(self.own_p_value, also.p_value if also and also.known else 0.0)

    @property
    def own_p_value(self) -> float:
        """Of "no worse than the baseline": the smaller of both tests at their shares of alpha, of
        those first that measured more than the limit."""
        tests = [(self.usual, 1.0)]
        if self.plain is not self.usual:
            tests = [(self.usual, _FOR_USUAL), (self.plain, 1 - _FOR_USUAL)]
        tests = [(one, share) for one, share in tests if self._beyond(one)] or tests
        return min(1.0, *(one.chance_of_none(self.sign) / share for one, share in tests))

    def shown(self, p_limit: float) -> Contrast:
        """The contrast that the outcome rests on: the usual one, unless only stalls regressed."""
        stalls = self._beyond(self.plain) and not self._beyond(self.usual)
        return self.plain if stalls and self.own_p_value <= p_limit else self.usual

    def outcome(self, p_adjusted: float, alpha: float) -> str:
        if p_adjusted <= alpha and (self._beyond(self.usual) or self._beyond(self.plain)):
            return REGRESSION
        return PASS if self.most < self.edge else UNSURE

    @property
    def most(self) -> float:
        """The change for the worse, in logarithms, that is exceeded by a chance of MISS."""
        usual = self.usual
        return self.sign * usual.value + quantile(1 - MISS, usual.freedom) * usual.error

    def share(self, logs: float) -> float:
        """A difference of logarithms as a share for the worse: more seconds, or less goodput."""
        return self.sign * (math.exp(logs) - 1)

    def _beyond(self, one: Contrast) -> bool:
        return self.sign * one.value > self.edge


def change_of(panel: Panel, metric: GateMetric, limit: float) -> Change:
    """The change of `metric` from the baseline's runs to the judged ones; `limit` is a share."""
    worse = -1 if metric.better == HIGHER else 1
    plain = usual = contrast(panel, panel.figures(metric))
    # A mean of seconds is moved by a few stalled steps.
    if metric.quantile is None and (is_seconds(metric.of) or is_seconds(metric.per)):
        usual = contrast(panel, panel.figures(metric, usual=True))
    return Change(usual, plain, worse, worse * math.log(1 + worse * limit))


def needed(panel: Panel, change: Change) -> dict[str, int]:
    """What would tell a run that is as measured, or unchanged, from one at the limit, one of them:
    `more_steps` in each judged run, `more_runs`, or `more_baselines`, beside those there are;
    empty: no number that one makes."""
    usual, m, k = change.usual, panel.baseline, len(panel.runs) - panel.baseline
    steps = min(panel.steps[m:])
    if steps < FEWEST:
        return {"more_steps": FEWEST - steps}
    apart = abs(change.edge - change.sign * usual.value)
    surely = quantile(1 - MISS, usual.freedom)
    unchanged = change.edge / (surely + 0.84)  # passes four times of five
    most = min(unchanged, max(apart, change.edge / 4) / surely) ** 2
    starts, chance = usual.of_starts, usual.chance
    left = most - starts * (1 / m + 1 / k)
    if left > 0:  # more steps alone do: chance falls with them, in the judged run and in the next
        times = chance * (1 / m + 1 / k) / left
        if 1 < times <= _MOST_TIMES:
            return {"more_steps": math.ceil(steps * (times - 1))}
    whole = starts + chance
    for count in range(m + 1, _MOST_TIMES * m):
        if whole * (1 / count + 1 / k) <= most:
            return {"more_baselines": count - m}
    for count in range(1, _MOST_TIMES):
        if whole * (1 / (m + count) + 1 / (k + count)) <= most:
            return {"more_runs": count, "more_baselines": count}
    return {}


def holm(p_values: list[float]) -> list[float]:
    """Holm's adjusted p-values (1979): comparing each with alpha keeps the chance of any false
    alarm below it, however the tests depend on each other. NaN are of tests that were not made."""
    order = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    adjusted, most = list(p_values), 0.0
    for rank, (p, i) in enumerate(order):
        most = max(most, min(1.0, p * (len(order) - rank)))
        adjusted[i] = most
    return adjusted


# --- the difference of two sides, where a run is one observation: its steps say nothing of how
# starts of a job differ (Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time"). Its
# variance s² is that of the runs at hand, moderated by a prior of a few degrees of freedom (Smyth
# 2004, doi 10.2202/1544-6115.1027, equation 6):
#
#     s̃² = (f₀ (τ₀² + v) + (m - 1) s_m² + (k - 1) s_k²) / (f₀ + m + k - 2)
#
# for m runs of the baseline and k that are judged. v is what the steps give one run's figure by
# chance (a block bootstrap), τ₀ what starts of a job add: `TAU`, measured on the built-in trainer,
# whose starts differ by 0.1 to 2 %. The difference of the means has the variance s̃² (1/m + 1/k)
# and Student's t with f₀ + m + k - 2 degrees of freedom.

TAU = 0.01  # standard deviation between starts of the same job, as a share of the figure
FREEDOM = 2.0
LEVEL = 0.95
_EXACT = 1e-18  # a variance that is none but for rounding
_MOST_FREEDOM = 4.0  # of the prior, however many steps say what chance does in one run


@dataclass(frozen=True)
class Contrast:
    """Judged minus baseline: `value` with its standard `error` (Student's t with `freedom`), the
    variance that steps give the figure of one judged run (`chance`), and `of_starts` of the job."""

    value: float
    error: float
    freedom: float
    chance: float
    of_starts: float

    @property
    def known(self) -> bool:
        return not math.isnan(self.value) and not math.isnan(self.error)

    def chance_of_none(self, sign: int) -> float:
        """The p-value of "`sign` times the difference is at most 0", one-sided."""
        beyond = sign * self.value
        if not self.error > 0:
            return 0.0 if beyond > _EXACT else 1.0
        return tail(beyond / self.error, self.freedom)

    def interval(self, level: float = LEVEL) -> Interval:
        if not self.known:
            return UNKNOWN
        return around(self.value, quantile((1 + level) / 2, self.freedom) * self.error)

    def mapped(self, by: Callable[[float], float]) -> Interval:
        """The interval in another unit, by a function that rises or falls."""
        found = self.interval()
        value, one, other = (by(x) for x in (found.value, found.low, found.high))
        return Interval(value, min(one, other), max(one, other))


def contrast(panel: Panel, figures: Floats, tau: float = TAU, logs: bool = True) -> Contrast:
    """The contrast of a figure of `Panel.figures`: of its logarithms, or of itself with `tau` in
    its own unit. NaN where a run does not have it, or has a 0 where logarithms are asked for."""
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
    of_starts = max(variance - chance_m, 0.0)
    error = math.sqrt(variance / m + (of_starts + chance_k) / k)
    return Contrast(float(judged.mean() - base.mean()), error, all_freedom, chance_k, of_starts)


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
