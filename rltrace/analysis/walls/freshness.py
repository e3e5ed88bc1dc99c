"""Staleness: tokens are trained on so late that they hardly count.

The cost is 1 - ESS over that of samples of lag 0, whose ratios show engine mismatch and the updates
within a step, not lag. At lag 0 it costs nothing, whatever the ratios are.
"""

from __future__ import annotations

import math

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import within
from rltrace.analysis.trajectories.freshness import CLIP_LIMIT, ESS_LIMIT
from rltrace.analysis.walls import wall as w

SYMPTOM = "samples lag, and fewer of their tokens count (ESS)"
_VERSIONS = "the policy version of each sample: a hook where samples are made and trained on"
_RATIOS = "ratio statistics by sample (sum w, sum w², clip share): a hook on the policy loss"


@w.register(w.FRESHNESS)
def freshness(analysis: RunAnalysis) -> w.Wall:
    lags, fresh = analysis.staleness, analysis.freshness
    evidence = _evidence(analysis)

    def unknown(why: str, *missing: str) -> w.Wall:
        # Where generation and training take turns, a step trains on its own samples.
        most = 0.0 if analysis.placement == "colocated" else 1.0
        return w.cannot_tell(w.FRESHNESS, SYMPTOM, why, *missing, evidence=evidence, at_most=most)

    if not lags.trajectories:
        return unknown("which samples were trained on was not recorded", _VERSIONS, _RATIOS)
    if not lags.known_trajectories:
        return unknown("no sample's version is known: its lag is unknown, not zero", _VERSIONS)
    if lags.known_trajectories == lags.trajectories and lags.largest_lag <= 0:
        because = "every sample was trained on by the version that generated it"
        return w.Wall(w.FRESHNESS, w.LIKELY, w.NONE, SYMPTOM, because, evidence, ())
    if fresh.overall is None:
        return unknown("samples lag, and no importance ratios were recorded", _RATIOS)
    kept = analysis.kept
    if kept.lost_tokens > kept.tokens / 2:
        return unknown(
            "log-probs were computed again under later weights, so every ratio reads 1",
            "the engine's own token ids and log-probs, kept from generation",
        )
    same = next((p.ess_share.value for p in fresh.curve if p.lag == 0 and p.enough), 1.0)
    base = same if same > 0 else 1.0  # where there is too little of lag 0, too
    weights = fresh.effective_share.value, fresh.effective_share.high, fresh.effective_share.low
    share, low, high = (within(1 - weight / base) for weight in weights)
    cost = w.Cost(share, low, high, fresh.ess_share_of_steps.n)
    sure = fresh.overall.enough and cost.half_width <= max(0.1, cost.share / 2)
    missing = () if lags.known_trajectories == lags.trajectories else (_VERSIONS,)
    because = "what lag takes from the effective sample size (ESS)"
    return w.Wall(
        w.FRESHNESS, w.LIKELY if sure else w.WEAK, cost, SYMPTOM, because, evidence, missing
    )


def _evidence(analysis: RunAnalysis) -> tuple[w.Figure, ...]:
    lags, fresh = analysis.staleness, analysis.freshness
    found = []
    if lags.known_trajectories:
        found.append(w.Figure("lag, mean", lags.mean_lag, "policy versions", lags.known_uses))
        found.append(w.Figure("lag, p95", lags.p95_lag, "policy versions", lags.known_uses))
    overall = fresh.overall
    if overall is not None:
        n, tokens = fresh.ess_share_of_steps.n, overall.tokens
        found.append(w.cost_of(fresh.effective_share, n).as_figure("tokens that count (ESS)"))
        found.append(w.cost_of(overall.clip_share, tokens).as_figure("tokens clipped"))
    if fresh.bound.known:
        what = f"lag that keeps ESS over {ESS_LIMIT:g} and clipping under {CLIP_LIMIT:g}"
        found.append(w.Figure(what, fresh.bound.safe_lag, "policy versions", len(fresh.curve)))
    return tuple(one for one in found if not math.isnan(one.value))
