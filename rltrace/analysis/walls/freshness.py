"""Freshness: tokens are trained on so late that they hardly count.

The cost is what lag takes from the effective sample size: 1 - ESS over that of samples of lag 0,
whose ratios show engine mismatch and the updates within a step, not lag. At lag 0 freshness costs
nothing, whatever the ratios are.
"""

from __future__ import annotations

import math

from rltrace.analysis.freshness import CLIP_LIMIT, ESS_LIMIT
from rltrace.analysis.lag_curve import LagPoint
from rltrace.analysis.walls.wall import (
    CANNOT_TELL,
    FRESHNESS,
    LIKELY,
    NONE,
    UNKNOWN,
    WEAK,
    Cost,
    Figure,
    Seen,
    Wall,
)

SYMPTOM = "samples lag, and fewer of their tokens count (ESS)"
_VERSIONS = "the policy version of each sample: a hook where samples are made and trained on"
_RATIOS = "ratio statistics by sample (sum w, sum w², clip share): a hook on the policy loss"


def freshness(seen: Seen) -> Wall:
    """The test."""
    lags, fresh = seen.staleness, seen.freshness
    evidence = _evidence(seen)

    def unknown(why: str, *missing: str) -> Wall:
        return Wall(FRESHNESS, CANNOT_TELL, UNKNOWN, SYMPTOM, why, evidence, missing)

    if not lags.trajectories:
        return unknown("nobody recorded which samples were trained on", _VERSIONS, _RATIOS)
    if not lags.known:
        return unknown("no sample's version is known: its lag is unknown, not zero", _VERSIONS)
    if lags.known == lags.trajectories and lags.largest_lag <= 0:
        because = "every sample was trained on by the version that generated it"
        return Wall(FRESHNESS, LIKELY, NONE, SYMPTOM, because, evidence, ())
    if fresh.overall is None:
        return unknown("samples lag, and no learner gave ratio statistics", _RATIOS)
    kept = seen.kept
    if kept.lost_tokens > kept.tokens / 2:
        return unknown(
            "ratios rest on log-probs that were computed anew under later weights, and read 1",
            "the sampler's own token ids and log-probs, kept where it generated them",
        )
    base = _without_lag(fresh.curve)
    cost = Cost(
        max(0.0, 1 - fresh.weight / base),
        max(0.0, 1 - fresh.weight_high / base),
        min(1.0, max(0.0, 1 - fresh.weight_low / base)),
        fresh.ess_share_of_steps.n,
    )
    sure = fresh.overall.enough and cost.half_width <= max(0.1, cost.share / 2)
    missing = () if lags.known == lags.trajectories else (_VERSIONS,)
    because = "what lag takes from the effective sample size of the tokens that are trained on"
    return Wall(FRESHNESS, LIKELY if sure else WEAK, cost, SYMPTOM, because, evidence, missing)


def _without_lag(curve: tuple[LagPoint, ...]) -> float:
    """ESS / N at lag 0, 1 where there is too little of it."""
    same = next((p for p in curve if p.lag == 0 and p.enough), None)
    return 1.0 if same is None or not same.ess_share > 0 else same.ess_share


def _evidence(seen: Seen) -> tuple[Figure, ...]:
    lags, fresh = seen.staleness, seen.freshness
    found = []
    if lags.known:
        found.append(Figure("lag, mean", lags.mean_lag, "policy versions", lags.known_uses))
        found.append(Figure("lag, p95", lags.p95_lag, "policy versions", lags.known_uses))
    overall = fresh.overall
    if overall is not None:
        steps = fresh.ess_share_of_steps
        found.append(
            Figure("tokens that count (ESS)", fresh.weight, "share", steps.n,
                   fresh.weight_low, fresh.weight_high)
        )  # fmt: skip
        found.append(
            Figure("tokens clipped", overall.clip_share, "share", overall.tokens,
                   overall.clip_low, overall.clip_high)
        )  # fmt: skip
    if fresh.bound.told:
        what = f"lag that keeps ESS over {ESS_LIMIT:g} and clipping under {CLIP_LIMIT:g}, surely"
        found.append(Figure(what, fresh.bound.sure, "policy versions", len(fresh.curve)))
    return tuple(one for one in found if not math.isnan(one.value))
