"""How a run's data is, what was not recorded, and what tracing cost: a line each."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rltrace.analysis.summary import Summary
from rltrace.report import units
from rltrace.report.layout import listed

_SLIGHT = 0.005  # of the tokens: less is not worth a word
_MOST_KINDS = 3


def cells(summary: Summary) -> Iterator[tuple[str, str]]:
    """`(name, text)` of each; an empty text where there is nothing to say."""
    yield "staleness", _staleness(summary)
    yield "tokens", _tokens(summary)
    yield "samples", _samples(summary)
    yield "decode", _decode(summary)
    yield "latency", _latency(summary)
    yield "mean reward", _reward(summary)
    yield "goodput", _goodput(summary)
    yield "weight sync", _sync(summary)
    yield "not recorded", ", ".join(stage.name for stage in summary.coverage.unseen)
    yield "problems", _problems(summary)
    cost = summary.own_cost.share
    yield "overhead", "" if summary.run.imported or math.isnan(cost) else units.share(cost)


def _problems(summary: Summary) -> str:
    seen = summary.coverage
    told = [one for one in seen.problems if one.what != "no-gpu"]  # which stands at the top
    kinds = [f"{one.what} × {one.count}" if one.count > 1 else one.what for one in told]
    said = list(dict.fromkeys(kinds))
    if seen.never_hooked:
        said.append(f"never put in place: --hook {listed(seen.never_hooked)}")
    return f"{', '.join(said[:_MOST_KINDS])}: see --full" if said else ""


def _staleness(summary: Summary) -> str:
    lags, fresh = summary.staleness, summary.freshness
    if not lags.trajectories:
        return ""
    if not lags.known_uses:
        return "unknown: no policy version was recorded"
    text = "on policy (lag 0)"
    if lags.largest_lag:
        text = f"lag {units.number(lags.mean_lag)} versions in the mean, largest {lags.largest_lag}"
    ess = f", ESS {units.share(fresh.effective_share.value)}"
    return text if fresh.overall is None else text + ess


def _tokens(summary: Summary) -> str:
    goodput = summary.goodput
    if goodput is None or math.isnan(goodput.trained_share):
        return ""
    text = f"{units.share(goodput.trained_share)} trained on"
    if loss := next((loss for loss in goodput.losses if loss.share >= _SLIGHT), None):
        text += f", {units.share(loss.share)} {loss.reason}"
    trained = goodput.trained
    if trained.tokens and trained.zero_advantage_tokens:
        share = trained.zero_advantage_tokens / trained.tokens
        text += f"; {units.share(share)} of those zero advantage"
    return text


def _samples(summary: Summary) -> str:
    """What a log says of samples that no trace has."""
    logged, parts = summary.logged, []
    if reward := logged.get("reward"):
        came = f" → {units.number(reward.last)}" if reward.n > 1 else ""
        parts.append(f"reward {units.number(reward.first)}{came}")
    if tokens := logged.get("response_tokens"):
        parts.append(f"{units.count(tokens.mean)} tokens in the mean")
    if cut := logged.get("truncated"):
        parts.append(f"{units.share(cut.mean)} cut off")
    if lag := logged.get("lag"):
        parts.append(f"lag {units.number(lag.mean)}")
    return ", ".join(parts)


def _decode(summary: Summary) -> str:
    figures = [one for wall in summary.verdict.walls for one in wall.evidence]
    rates = [units.count(one.value) for one in figures if one.name == "tokens while generating"]
    parts = [f"{rate} tokens/s while generating" for rate in rates]
    slots, tokens = summary.tail.slots, summary.tail.response_tokens
    if slots is not None:
        parts.append(f"{units.share(slots.used_share.mean)} of the engines' slots in use")
    if tokens.n > 1:
        parts.append(f"length p95/p50 {units.ratio(tokens.tail_ratio)}")
    return ", ".join(parts)


def _latency(summary: Summary) -> str:
    times = ("a sample", summary.tail.latency_s), ("its reward", summary.tail.reward_latency_s)
    timed = [(name, units.seconds(s.p50), units.seconds(s.p95)) for name, s in times if s.n > 1]
    return ", ".join(f"{name} {p50} (p95 {p95})" for name, p50, p95 in timed)


def _reward(summary: Summary) -> str:
    reward, signal = summary.reward, summary.signal
    parts = []
    if reward is not None:
        gain, first, last = reward.gain_per_device_hour, reward.first_reward, reward.last_reward
        trend = " (no clear trend)" if gain.contains(0) else ""
        if (gain.low > 0 and last > first) or (gain.high < 0 and last < first):
            trend = " (rises)" if gain.low > 0 else " (falls)"
        parts.append(f"{units.number(first)} → {units.number(last)}{trend}")
    if signal is not None and signal.known:
        parts.append(f"{units.share(signal.share)} of the groups carry a signal")
    return ", ".join(parts)


def _goodput(summary: Summary) -> str:
    goodput = summary.goodput
    if goodput is None:
        return "unknown: no use of a sample by the learner was recorded"
    if math.isnan(rate := goodput.useful_tokens_per_device_s):
        return ""
    text = f"{units.count(rate)} useful tokens per {goodput.devices.kind}-second"
    per_usd = goodput.useful_tokens_per_usd()
    return text if math.isnan(per_usd) else f"{text}, {units.count(per_usd)} per US$"


def _sync(summary: Summary) -> str:
    syncs = summary.syncs
    if syncs is None or not syncs.updates:
        return ""
    size = f", {units.size(syncs.bytes_per_update.mean)}" if syncs.bytes_per_update.n else ""
    return f"{units.seconds(syncs.update_s.mean)} an update{size}"
