"""What lag costs: sample size and clipping at each, and the bound.

Two things move the ratio of learner to sampler probability, and are told apart here: the policy's
lag and the mismatch of engine and trainer (other kernels, another precision). Samples of lag 0 show
the mismatch alone where a version is one optimizer update; else earlier updates of the same step
are in it too. With w the ratio of a token, the effective sample size of a share of the tokens is
(Σw)² / (N Σw²) (Kong 1992; 1 / (1 + χ²) where the mean of w is 1). Intervals are of a jackknife
that leaves out one step at a time, since samples of a step are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.stats.confidence_interval import Interval, Spread, spread, t95
from rltrace.analysis.timeline.intervals import Columns, Floats
from rltrace.analysis.trajectories.staleness import LAG_UNIT, Staleness
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_toml

_SQL = packaged_toml("analysis/data/sample_queries.toml")
ESS_LIMIT = 0.5  # a lag is within bounds while at least this part of its tokens counts
CLIP_LIMIT = 0.15
"""And while at most this part is cut off: a rule of thumb of practitioners, who report that runs
break above 0.25."""
FEWEST_STEPS = 5
FEWEST_TRAJECTORIES = 30
"""Below either, a lag has too few samples to say anything."""


@dataclass(frozen=True)
class VersionUnit:
    """A policy version: learner steps (measured), optimizer updates (as stated); NaN: unknown."""

    name: str
    learner_steps: float
    optimizer_updates: float


@dataclass(frozen=True)
class Mismatch:
    """Samples whose tokens are all of the version that trained on them. `alone`: of the engine
    alone."""

    point: LagPoint
    alone: bool | None


@dataclass(frozen=True)
class LagBound:
    """The largest lag at which ESS and clip share keep within the limits: at least `safe_lag` (-1:
    none does surely), at most `max_lag` (None: no lag seen is surely too old). `known`: there were
    enough samples; `because` says what it rests on or what lacks."""

    known: bool
    safe_lag: int
    max_lag: int | None
    ess_share_limit: float
    clip_share_limit: float
    because: str


@dataclass(frozen=True)
class Freshness:
    """How much of what was trained on counts. `overall` is None where no learner gave ratio
    statistics. `effective_share` is the part of the trained tokens that counts: the effective
    sample size of each step, weighted by its tokens."""

    unit: VersionUnit
    objective: str
    prior: Prior
    overall: LagPoint | None
    ess_share_of_steps: Spread
    curve: tuple[LagPoint, ...]
    mismatch: Mismatch | None
    bound: LagBound
    effective_share: Interval
    effective_share_source: str
    infinite_ratios: int


def freshness(run: OpenedRun, lags: Staleness) -> Freshness:
    sums, objective = ratio_sums(run), str(_stated(run, "objective") or "")
    prior, unit, points = prior_for(objective), _unit(run), curve(sums)
    finite = sums.take(sums.tokens > 0)
    ess, tokens = ess_by_step(finite)
    of_steps = spread(ess)
    same = finite.take((finite.lag == 0) & (finite.unmixed == 1))
    updates = updates_in_ratios(run)
    alone = None if math.isnan(updates) else updates <= 1
    if len(finite):
        known = ~np.isnan(ess)
        weight = float(np.average(ess[known], weights=tokens[known])) if known.any() else math.nan
        half = 0.0 if math.isnan(of_steps.high) else of_steps.high - of_steps.mean
        low, high = max(0.0, weight - half), min(1.0, weight + half)
        source = "effective sample size of the recorded ratios"
    else:
        weight, low, high, source = _by_prior(lags, prior)
    return Freshness(
        unit=unit, objective=objective, prior=prior,
        overall=point(finite, None) if len(finite) else None, ess_share_of_steps=of_steps,
        curve=points, mismatch=Mismatch(point(same, 0), alone) if len(same) else None,
        bound=lag_bound(points, prior.assumed), effective_share=Interval(weight, low, high),
        effective_share_source=source, infinite_ratios=int(sums.infinite.sum()),
    )  # fmt: skip


def lag_bound(points: tuple[LagPoint, ...], assumed: bool = False) -> LagBound:
    lags = [(p.lag, p) for p in points if p.lag is not None]
    told = [(lag, p) for lag, p in lags if p.enough and not math.isnan(p.ess_share.low)]
    most: int | None = None
    sure, holds = -1, True
    because = "no learner gave ratio statistics of samples of known lag"
    if lags:
        because = "each lag has too few samples or steps"
    for lag, p in told:
        if p.ess_share.high < ESS_LIMIT or p.clip_share.low > CLIP_LIMIT:
            most, because = lag - 1, f"lag {lag} is beyond the limits"
            break
        clip_keeps = math.isnan(p.clip_share.value) or p.clip_share.high <= CLIP_LIMIT
        holds = holds and p.ess_share.low >= ESS_LIMIT and clip_keeps
        sure = lag if holds else sure
        because = f"lag {lag} is not surely beyond"
        if holds:
            because = f"the oldest samples, of lag {lag}, keep within the limits"
    if assumed and told and most is None:  # what keeps within these limits may harm it all the same
        told, sure, because = [], -1, "the objective is not known"
    return LagBound(bool(told), sure, most, ESS_LIMIT, CLIP_LIMIT, because)


def _by_prior(lags: Staleness, prior: Prior) -> tuple[float, float, float, str]:
    """`(weight, low, high, source)` without ratios. Tokens at lags that published systems hold
    count whole; of those beyond nobody knows: the low end is without them."""
    tokens = {bar.lag: bar.tokens for bar in lags.by_first_token}
    known = sum(n for lag, n in tokens.items() if lag is not None)
    if not known:
        return math.nan, math.nan, math.nan, "neither ratios nor lags were recorded"
    held = sum(n for lag, n in tokens.items() if lag is not None and lag < prior.doubtful)
    assumed = ", assumed" if prior.assumed else ""
    source = f"no ratios were recorded; prior for {prior.objective}{assumed}: {prior.source}"
    return 1.0, held / sum(tokens.values()), 1.0, source


def _unit(run: OpenedRun) -> VersionUnit:
    steps, versions = run.ask(
        "select count(distinct nullif(step, -1)), count(distinct version) from (select distinct "
        "step, version from told_uses where time_ns > 0 and fate = 0 and version <> -1)"
    )[0]
    return VersionUnit(
        name=LAG_UNIT,
        learner_steps=steps / versions if steps and versions else math.nan,
        optimizer_updates=_number(_stated(run, "updates_per_version")),
    )


def updates_in_ratios(run: OpenedRun) -> float:
    """Optimizer updates of a version between its first and last ratios (NaN: unknown): all, unless
    the framework computes the log-probs of a batch before it trains on it."""
    before = _stated(run, "ratios_before_updates")
    return 1.0 if before else _number(_stated(run, "updates_per_version"))


def _number(stated: object) -> float:
    return float(stated) if isinstance(stated, int | float) else math.nan


def _stated(run: OpenedRun, fact: str) -> object:
    """What a process of the job, or else the run's settings, state."""
    settings = run.meta.get("settings")
    stated = [process.facts for process in run.processes]
    stated += [settings] if isinstance(settings, dict) else []
    return next((facts[fact] for facts in stated if facts.get(fact) is not None), None)


@dataclass(frozen=True)
class LagPoint:
    """Samples of one lag (None: unknown, or all lags) with ratio statistics. `ess_share` is the
    effective sample size over the tokens, `clip_share` the part of the tokens that the objective
    cut off, `kl_nats` the mean of log(sampler / learner) over tokens. Intervals are NaN for a
    single step. `enough`: there are `FEWEST_STEPS` and `FEWEST_TRAJECTORIES`."""

    lag: int | None
    trajectories: int
    tokens: int
    steps: int
    ess_share: Interval
    clip_share: Interval
    kl_nats: float
    enough: bool


@dataclass(frozen=True)
class RatioSums(Columns):
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


def ratio_sums(run: OpenedRun) -> RatioSums:
    """Of all samples that were trained on; those whose generation saw versions change are apart."""
    columns = run.ask(_SQL["ratio_sums"])
    table = np.array(columns, np.float64).reshape(-1, 12)
    table[:, 2:] = np.nan_to_num(table[:, 2:])
    return RatioSums(*table.T)


def curve(sums: RatioSums) -> tuple[LagPoint, ...]:
    """A point for each lag, in their order, the unknown one last."""
    known = np.unique(sums.lag[~np.isnan(sums.lag)])
    points = [point(sums.take(sums.lag == lag), int(lag)) for lag in known]
    unknown = sums.take(np.isnan(sums.lag))
    return (*points, *([point(unknown, None)] if len(unknown) else []))


def point(sums: RatioSums, lag: int | None) -> LagPoint:
    ess = _left_out(_ess, *_by_step(sums, sums.w, sums.w_squared, sums.tokens))
    clip = _left_out(_ratio, *_by_step(sums, sums.clipped_tokens, sums.clip_known_tokens))
    kl = -float(_ratio(sums.log_ratio.sum(), sums.log_ratio_known_tokens.sum()))
    trajectories, tokens = int(sums.trajectories.sum()), int(sums.tokens.sum())
    steps = len(np.unique(sums.step))
    enough = steps >= FEWEST_STEPS and trajectories >= FEWEST_TRAJECTORIES
    return LagPoint(lag, trajectories, tokens, steps, Interval(*ess), Interval(*clip), kl, enough)


def ess_by_step(sums: RatioSums) -> tuple[Floats, Floats]:
    """ESS / N of each step and its tokens, in the order of the steps."""
    w, squares, tokens = _by_step(sums, sums.w, sums.w_squared, sums.tokens)
    return _ess(w, squares, tokens), tokens


def _by_step(sums: RatioSums, *columns: Floats) -> list[Floats]:
    steps, of_step = np.unique(sums.step, return_inverse=True)
    return [np.bincount(of_step, one, len(steps)).astype(np.float64) for one in columns]


@np.errstate(all="ignore")
def _ess(w: Floats, w_squared: Floats, tokens: Floats) -> Floats:
    return _ratio(w * w, tokens * w_squared)


@np.errstate(all="ignore")
def _ratio(part: Floats, whole: Floats) -> Floats:
    found = np.divide(part, whole)
    return np.where(np.isfinite(found), found, np.nan)


@np.errstate(over="ignore", invalid="ignore")  # sums of a damaged segment may be any number
def _left_out(estimate: Callable[..., Floats], *by_step: Floats) -> tuple[float, float, float]:
    """`(estimate over all, low, high)`: a delete-one jackknife, bounded to 0 and 1."""
    n = len(by_step[0])
    whole = float(estimate(*(values.sum() for values in by_step)))
    without = estimate(*(values.sum() - values for values in by_step))
    if not np.isfinite(without).all():
        return whole, math.nan, math.nan
    deviation = math.sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))
    half = t95(n - 1) * deviation
    return whole, max(0.0, whole - half), min(1.0, whole + half)


@dataclass(frozen=True)
class Prior:
    """Systems with this objective run at lags up to `held` without remark, and harm is reported
    from `doubtful` on; in learner steps. `assumed`: the run did not say its objective."""

    objective: str
    held: int
    doubtful: int
    source: str
    assumed: bool


def prior_for(objective: str) -> Prior:
    """By any name of the objective; of an unknown one plain PPO's, which tolerates least."""
    table = packaged_toml("analysis/data/lag_priors.toml")["prior"]
    found = [one for one in table if objective.lower() in one["match"]]
    one = (found or table)[0]
    return Prior(one["objective"], one["held"], one["doubtful"], one["source"], assumed=not found)
