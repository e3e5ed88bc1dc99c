"""How far the policy had moved from what sampled, at each lag: ESS, clip share and KL by lag.

With w the ratio of learner to sampler probability of a token, the effective sample size of a share
of the tokens is (Σw)² / (N Σw²) (Kong 1992; 1 / (1 + χ²) where the mean of w is 1), here over all
tokens of a lag in a run. Intervals are of a jackknife that leaves out one step at a time, since
the samples of a step are no independent ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.samples import GENERATED_SAMPLES
from rltrace.analysis.spread import t95
from rltrace.trace.vocabulary import Fate

if TYPE_CHECKING:
    from rltrace.trace.run import Run

Floats = NDArray[np.float64]

FEWEST_STEPS = 5
FEWEST_TRAJECTORIES = 30
"""Below either, a lag has too few samples to say anything."""


@dataclass(frozen=True)
class LagPoint:
    """Samples of one lag (None: unknown, or of all lags where it stands for all).

    `trajectories` and `steps` are those with ratio statistics, `tokens` theirs. `ess_share` is the
    effective sample size over the tokens, `clip_share` the part of the tokens that the objective
    cut off, `kl_nats` the mean of log(sampler / learner) over tokens: an estimate of the divergence
    of the learner from the sampler. Bounds are 95 % intervals, NaN for a single step. `enough`:
    there are `FEWEST_STEPS` and `FEWEST_TRAJECTORIES` of it.
    """

    lag: int | None
    trajectories: int
    tokens: int
    steps: int
    ess_share: float
    ess_low: float
    ess_high: float
    clip_share: float
    clip_low: float
    clip_high: float
    kl_nats: float
    enough: bool


@dataclass(frozen=True)
class RatioSums:
    """What is added up over samples, by lag (NaN: unknown) and step; one place for each pair."""

    lag: Floats
    step: Floats
    trajectories: Floats
    tokens: Floats
    w: Floats
    w_squared: Floats
    clipped_tokens: Floats
    clip_known_tokens: Floats
    log_ratio: Floats
    log_ratio_known_tokens: Floats
    infinite: Floats
    unmixed: Floats

    def __len__(self) -> int:
        return len(self.lag)

    def where(self, chosen: NDArray[np.bool_]) -> RatioSums:
        """The chosen places."""
        return RatioSums(*(column[chosen] for column in vars(self).values()))


def ratio_sums(run: Run) -> RatioSums:
    """The ratio statistics of all samples that were trained on, where the learner gave them. Rows
    of samples whose generation saw versions change are apart from the others (`unmixed`: 0)."""
    # A use without a step is of the version that trained on it. What is infinite is counted apart.
    columns = run.ask(f"""
        {GENERATED_SAMPLES}
        select case when u.version >= 0 then u.version - g.first_version end::double as lag,
               case when u.step >= 0 then u.step else u.version end::double as step,
               (count(distinct nullif(u.trajectory, -1))
                + count(*) filter (u.trajectory = -1))::double,
               sum(n) filter (finite)::double,
               sum(sum_w) filter (finite)::double, sum(sum_w_squared) filter (finite)::double,
               sum(clip_share * n) filter (not isnan(clip_share))::double,
               sum(n) filter (not isnan(clip_share))::double,
               sum(mean_log_ratio * n) filter (isfinite(mean_log_ratio))::double,
               sum(n) filter (isfinite(mean_log_ratio))::double,
               count(*) filter (not finite)::double,
               coalesce(g.first_version = g.last_version, false)::int::double as unmixed
        from (select *, isfinite(sum_w) and isfinite(sum_w_squared) as finite
              from told_uses
              where time_ns > 0 and fate = {int(Fate.TRAINED)} and not isnan(sum_w)
                    and not isnan(sum_w_squared)) u
        left join (select * from generated where trajectory is not null) g using (trajectory),
        lateral (select coalesce(nullif(u.tokens, -1), g.response_tokens) as n)
        where n > 0 group by 1, 2, 12 order by 1, 2, 12
    """)
    table = np.array(columns, np.float64).reshape(-1, 12)
    table[:, 2:] = np.nan_to_num(table[:, 2:])
    return RatioSums(*table.T)


def curve(sums: RatioSums) -> tuple[LagPoint, ...]:
    """A point for each lag, in their order, the unknown one last."""
    known = np.unique(sums.lag[~np.isnan(sums.lag)])
    points = [point(sums.where(sums.lag == lag), int(lag)) for lag in known]
    unknown = sums.where(np.isnan(sums.lag))
    return (*points, *([point(unknown, None)] if len(unknown) else []))


def point(sums: RatioSums, lag: int | None) -> LagPoint:
    """All of `sums` as one point."""
    steps, of_step = np.unique(sums.step, return_inverse=True)

    def by_step(values: Floats) -> Floats:
        return np.bincount(of_step, values, len(steps)).astype(np.float64)

    ess = _left_out(_ess, by_step(sums.w), by_step(sums.w_squared), by_step(sums.tokens))
    clip = _left_out(_ratio, by_step(sums.clipped_tokens), by_step(sums.clip_known_tokens))
    kl = -float(_ratio(sums.log_ratio.sum(), sums.log_ratio_known_tokens.sum()))
    trajectories = int(sums.trajectories.sum())
    enough = len(steps) >= FEWEST_STEPS and trajectories >= FEWEST_TRAJECTORIES
    tokens = int(sums.tokens.sum())
    return LagPoint(lag, trajectories, tokens, len(steps), *ess, *clip, kl, enough)


def ess_by_step(sums: RatioSums) -> tuple[Floats, Floats]:
    """ESS / N of each step and its tokens, in the order of the steps."""
    steps, of_step = np.unique(sums.step, return_inverse=True)
    w, squares, tokens = (
        np.bincount(of_step, column, len(steps)).astype(np.float64)
        for column in (sums.w, sums.w_squared, sums.tokens)
    )
    return _ess(w, squares, tokens), tokens


def _ess(w: Floats, w_squared: Floats, tokens: Floats) -> Floats:
    with np.errstate(all="ignore"):
        found = np.asarray(np.asarray(w) ** 2 / (np.asarray(tokens) * np.asarray(w_squared)))
    return np.where(np.isfinite(found), found, np.nan)


def _ratio(part: Floats, whole: Floats) -> Floats:
    with np.errstate(all="ignore"):
        found = np.asarray(part, np.float64) / np.asarray(whole, np.float64)
    return np.where(np.isfinite(found), found, np.nan)


@np.errstate(over="ignore", invalid="ignore")  # sums of a damaged segment may be any number
def _left_out(estimate: object, *by_step: Floats) -> tuple[float, float, float]:
    """`(estimate over all, low, high)`: a delete-one jackknife, bounded to 0 and 1."""
    assert callable(estimate)
    n = len(by_step[0])
    whole = float(estimate(*(values.sum() for values in by_step)))
    if n < 2:
        return whole, math.nan, math.nan
    without = estimate(*(values.sum() - values for values in by_step))
    if not np.isfinite(without).all():
        return whole, math.nan, math.nan
    deviation = math.sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))
    half = t95(n - 1) * deviation
    return whole, max(0.0, whole - half), min(1.0, whole + half)
