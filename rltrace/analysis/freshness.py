"""What lag costs this run: ESS and clip share at each lag, and the lag bound that they allow.

Two things move the ratio of learner to sampler probability, and are told apart here: the policy's
lag (versions between sampling and training) and the mismatch of engine and trainer (the same
version, computed with other kernels or another precision). Samples of lag 0 show the mismatch
alone where a version is one optimizer update; where it is several, the updates of the same step
that came before a minibatch are in it too, and `Mismatch` says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.lag_curve import LagPoint, RatioSums, curve, ess_by_step, point, ratio_sums
from rltrace.analysis.lag_priors import Prior, prior_for
from rltrace.analysis.samples import TRAINED_SAMPLES
from rltrace.analysis.spread import Spread, spread, spread_of
from rltrace.analysis.staleness import LAG_UNIT, Staleness

if TYPE_CHECKING:
    from rltrace.trace.run import Run

ESS_LIMIT = 0.5
"""A lag is within bounds while at least this part of its tokens counts."""
CLIP_LIMIT = 0.15
"""And while at most this part is cut off: above 0.05 a clip works for its living, above 0.25 runs
are reported to break (a rule of thumb of practitioners, not a published law)."""


@dataclass(frozen=True)
class VersionUnit:
    """What one policy version is: learner steps (measured: steps over versions trained) and
    optimizer updates (as the trainer states them). NaN: unknown."""

    name: str
    learner_steps: float
    optimizer_updates: float


@dataclass(frozen=True)
class Mismatch:
    """Samples that were trained on by the version that generated all of their tokens. `alone`: the
    engine's mismatch is all that they show, since a version is a single update; else the drift
    within a step is in it (None: nobody said how many updates a version is)."""

    point: LagPoint
    alone: bool | None


@dataclass(frozen=True)
class LagBound:
    """The largest lag at which ESS and clip share keep within the limits: at least `sure` (their
    intervals lie within at it and at every smaller lag told; -1: at none), at most `most` (at the
    next one an interval lies beyond; None: no lag seen is surely too old). `told`: whether
    there were enough samples to say anything; `because` says what it rests on, or what is missing.
    """

    told: bool
    sure: int
    most: int | None
    ess_limit: float
    clip_limit: float
    because: str


@dataclass(frozen=True)
class Freshness:
    """How much of what was trained on counts, and at which lag. `overall` is None where no learner
    gave ratio statistics. `weight` is the part of the trained tokens that counts: the effective
    sample size of each step, weighted by its tokens, from `weight_low` to `weight_high`;
    `weight_source` says what it rests on. `queue_s` is the age of samples from their last token to
    their training; `objective` is empty where nobody stated it.
    """

    unit: VersionUnit
    objective: str
    prior: Prior
    overall: LagPoint | None
    ess_share_of_steps: Spread
    curve: tuple[LagPoint, ...]
    mismatch: Mismatch | None
    bound: LagBound
    weight: float
    weight_low: float
    weight_high: float
    weight_source: str
    infinite_ratios: int
    queue_s: Spread


def freshness(run: Run, lags: Staleness) -> Freshness:
    """The freshness of `run`; `lags` are its lags."""
    sums = ratio_sums(run)
    objective = _stated(run, "objective")
    prior = prior_for(objective if isinstance(objective, str) else "")
    unit = _unit(run)
    points = curve(sums)
    finite = sums.where(sums.tokens > 0)
    ess, tokens = ess_by_step(finite)
    if len(finite):
        known = ~np.isnan(ess)
        weight = float(np.average(ess[known], weights=tokens[known])) if known.any() else math.nan
        of_steps = spread(ess)
        half = of_steps.high - of_steps.mean
        low, high = (weight - half, weight + half) if not math.isnan(half) else (weight, weight)
        low, high = max(0.0, low), min(1.0, high)
        source = "effective sample size of the recorded ratios"
    else:
        weight, low, high, source = _by_prior(lags, prior)
    return Freshness(
        unit=unit,
        objective=objective if isinstance(objective, str) else "",
        prior=prior,
        overall=point(finite, None) if len(finite) else None,
        ess_share_of_steps=spread(ess),
        curve=points,
        mismatch=_mismatch(finite, unit),
        bound=lag_bound(points),
        weight=weight,
        weight_low=low,
        weight_high=high,
        weight_source=source,
        infinite_ratios=int(sums.infinite.sum()),
        queue_s=_queue_s(run),
    )


def lag_bound(
    points: tuple[LagPoint, ...], ess_limit: float = ESS_LIMIT, clip_limit: float = CLIP_LIMIT
) -> LagBound:
    """The lag bound that a curve allows, and how surely."""

    def answer(told: bool, sure: int, most: int | None, because: str) -> LagBound:
        return LagBound(told, sure, most, ess_limit, clip_limit, because)

    lags = [p for p in points if p.lag is not None]
    if not lags:
        return answer(False, -1, None, "no learner gave ratio statistics of samples of known lag")
    told = [p for p in lags if p.enough and not math.isnan(p.ess_low)]
    if not told:
        return answer(False, -1, None, "each lag has too few samples or steps")
    sure, holds = -1, True
    for p in told:
        assert p.lag is not None
        if p.ess_high < ess_limit or p.clip_low > clip_limit:
            return answer(True, sure, p.lag - 1, f"lag {p.lag} is beyond the limits")
        holds = holds and _keeps(p, ess_limit, clip_limit)
        sure = p.lag if holds else sure
    oldest = told[-1].lag
    because = f"the oldest samples, of lag {oldest}, keep within the limits"
    return answer(True, sure, None, because if holds else f"lag {oldest} is not surely beyond")


def _keeps(p: LagPoint, ess_limit: float, clip_limit: float) -> bool:
    clip_ok = math.isnan(p.clip_share) or p.clip_high <= clip_limit
    return p.ess_low >= ess_limit and clip_ok


def _mismatch(sums: RatioSums, unit: VersionUnit) -> Mismatch | None:
    same = sums.where((sums.lag == 0) & (sums.unmixed == 1))
    if not len(same):
        return None
    updates = unit.optimizer_updates
    return Mismatch(point(same, 0), None if math.isnan(updates) else updates <= 1)


def _by_prior(lags: Staleness, prior: Prior) -> tuple[float, float, float, str]:
    """`(weight, low, high, source)` where no ratios were recorded: tokens at lags that published
    systems hold count whole, and beyond nobody knows: they count, and the low end is without."""
    tokens = {bar.lag: bar.tokens for bar in lags.by_first_token}
    known = sum(n for lag, n in tokens.items() if lag is not None)
    if not known:
        return math.nan, math.nan, math.nan, "neither ratios nor lags were recorded"
    held = sum(n for lag, n in tokens.items() if lag is not None and lag < prior.doubtful)
    assumed = ", assumed" if prior.assumed else ""
    source = f"no ratios were recorded; prior for {prior.objective}{assumed}: {prior.source}"
    return 1.0, held / sum(tokens.values()), 1.0, source


def _unit(run: Run) -> VersionUnit:
    steps, versions = run.ask(
        "select count(distinct nullif(step, -1)), count(distinct version) "
        "from told_uses where time_ns > 0 and fate = 0 and version <> -1"
    )[0]
    updates = _stated(run, "updates_per_version")
    return VersionUnit(
        name=LAG_UNIT,
        learner_steps=steps / versions if steps and versions else math.nan,
        optimizer_updates=float(updates) if isinstance(updates, int | float) else math.nan,
    )


def _stated(run: Run, fact: str) -> object:
    """What a process of the job, or else the run's settings, state."""
    for process in run.processes:
        if process.facts.get(fact) is not None:
            return process.facts[fact]
    settings = run.meta.get("settings")
    return settings.get(fact) if isinstance(settings, dict) else None


def _queue_s(run: Run) -> Spread:
    source = f"({TRAINED_SAMPLES} from trained where end_ns > 0 and time_ns >= end_ns)"
    return spread_of(run, "(time_ns - end_ns) / 1e9", source)
