"""How old the data was, what lag costs, and how long trajectories take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rltrace.analysis.trajectories import freshness
from rltrace.analysis.trajectories.engine_gaps import LAST, LEAST_NATS, EngineGaps
from rltrace.analysis.trajectories.freshness import Freshness, LagBound, LagPoint
from rltrace.analysis.trajectories.staleness import Staleness, TokenLags
from rltrace.analysis.trajectories.tail import SlotUse, Tail
from rltrace.report import units
from rltrace.report.layout import Section, TableColumn, bar, numbers, table

_CURVE = "What lag costs"
_GAPS = "Engines against the learner"
_MOST_ENGINES = 8
_FACTOR_KNOWN = 100  # an interval that is wider says nothing
_LAG_BAR = 24
_MOST_LAGS = 12
_MOST_POINTS = 8
_NO_NATS = 5e-5


def staleness_section(lags: Staleness, handed_only: bool = False) -> Section:
    """The ages of what was trained on; `handed_only`: nobody saw the learner train on it."""
    bars = _lag_bars(lags)
    largest = max(one.trajectories for one in bars)
    rows = []
    for one in bars:
        n, by_token = one.trajectories, _of_tokens(one, lags.by_token)
        figures = units.count(n), units.share(n / lags.uses), by_token
        rows.append((one.label, bar(n / largest, _LAG_BAR), *figures))
    counted = "trajectories" if lags.uses == lags.trajectories else "uses"
    titles = numbers("lag", counted, "share", "by token")
    columns = (titles[0], TableColumn("", least_width=68), *titles[1:])
    if lags.known_uses:
        mean = f"{units.number(lags.mean_lag)} {lags.unit}{_by_token(lags.by_token)}"
        line = f"Mean lag {mean}, p95 {lags.p95_lag:.0f}, largest {lags.largest_lag}."
    else:
        line = "Unknown: no policy version of these samples was recorded."
    grid = table(rows, *columns) if len(rows) > 1 or not lags.known_uses else None
    return Section("Staleness", (line,), grid, tuple(_lag_notes(lags, handed_only)))


def _lag_notes(lags: Staleness, handed_only: bool) -> Iterator[str]:
    tokens = lags.by_token.tokens
    if lags.uses > lags.trajectories:
        n, times = units.count(lags.trajectories), units.count(lags.uses)
        yield f"{n} trajectories were trained on {times} times, each time with its own lag."
    if lags.by_token.mixed_tokens:
        mixed = units.share(lags.by_token.mixed_tokens / tokens)
        yield (
            f"The version changed within the trajectories of {mixed} of the tokens. "
            "These count evenly over the versions; brackets have the least and the most."
        )
    if lags.known_uses and lags.unknown_by_token:
        why = (f"{units.share(one.tokens / tokens)}, {one.reason}" for one in lags.unknown_by_token)
        yield f"By token unknown: {'; '.join(why)}."
    if handed_only:
        yield "No step was completed, and no training on these samples was recorded."
    if lags.mixed_share > 0:
        yield f"The version changed within {units.share(lags.mixed_share)} of trajectories."
    if lags.mean_lag and not math.isnan(lags.mean_lag_in_queue):
        flight, queue = map(units.number, (lags.mean_lag_in_flight, lags.mean_lag_in_queue))
        yield f"Mean lag from first to last token {flight}, from there to training {queue}."


def curve_section(fresh: Freshness) -> Section:
    overall = fresh.overall
    if overall is None:
        line = "Not measured: the learner's importance ratios were not recorded."
        prior = fresh.prior
        as_if = " (assumed: the run does not name its objective)" if prior.assumed else ""
        harm = f"lag {prior.held} does no harm, from {prior.doubtful} learner steps on it may"
        note = f"Published for {prior.objective}{as_if}: {harm} ({prior.source})."
        return Section(_CURVE, (line,), notes=(note,))
    points = [point for point in fresh.curve if point.lag is not None]
    told = [point for point in points if point.enough]
    shown = told or points
    if (last := len(shown) - 1) >= _MOST_POINTS:  # evenly spread, with the first and the last
        shown = [shown[round(i * last / (_MOST_POINTS - 1))] for i in range(_MOST_POINTS)]
    rows = [_cells(str(point.lag), point) for point in shown]
    if len(points) != 1:
        rows.append(_cells("all", overall))
    titles = ("lag", "ESS", ("95 %", 68), "clipped", ("KL, nats", 76), "n")
    ess, clipped = map(units.share, (fresh.effective_share.value, overall.clip_share.value))
    line = f"ESS {ess}: so many of the trained tokens count. The objective clipped {clipped}."
    few, notes = sum(not point.enough for point in points), []
    if 0 < few < len(points):
        least = f"{freshness.FEWEST_TRAJECTORIES} trajectories or {freshness.FEWEST_STEPS} steps"
        notes.append(f"{units.plural(few, 'lag')} with fewer than {least} not shown.")
    lines = line, _bound(fresh.bound)
    return Section(_CURVE, lines, table(rows, *numbers(*titles)), tuple(notes))


def _cells(label: str, point: LagPoint) -> tuple[str, ...]:
    ess, clipped = point.ess_share, units.share(point.clip_share.value)
    interval = f"{100 * ess.low:.0f} to {100 * ess.high:.0f} %"
    shares = units.share(ess.value), units.UNKNOWN if math.isnan(ess.low) else interval, clipped
    nats = "0" if abs(point.kl_nats) < _NO_NATS else units.number(point.kl_nats)
    return (label, *shares, nats, units.count(point.trajectories))


def _bound(bound: LagBound) -> str:
    clipped = f"clipped at most {units.share(bound.clip_share_limit)}"
    limits = f"ESS at least {units.share(bound.ess_share_limit)}, {clipped}"
    if not bound.known or (bound.max_lag is None and bound.safe_lag < 0):
        why = "the intervals reach over a limit" if bound.known else bound.because
        return f"Which lag keeps {limits} cannot be told: {why}."
    if bound.max_lag is None:
        return f"Lag {bound.safe_lag} keeps {limits}: {bound.because}."
    if bound.max_lag < 0:
        return f"No lag keeps {limits}: {bound.because}."
    if bound.safe_lag == bound.max_lag:
        return f"A lag bound of {bound.safe_lag} keeps {limits}: {bound.because}."
    least = f"at least {bound.safe_lag} and " if bound.safe_lag >= 0 else ""
    ends = f"{least}at most {bound.max_lag}"
    return f"The largest lag that keeps {limits} is {ends}: {bound.because}."


def gaps_section(gaps: EngineGaps) -> Section:
    """How far engines are from the learner, and since when; or what would tell."""
    if not gaps.engines:
        needs = f" They have with {gaps.needs}." if gaps.needs else ""
        line = f"Unknown: no sample has both ratios and its engine's own log-probs.{needs}"
        return Section(_GAPS, (line,))
    furthest = sorted((x for x in gaps.engines if x.versions), key=lambda x: -x.last_nats)
    rows = []
    for one in furthest[:_MOST_ENGINES]:
        low, high = one.growth.low, one.growth.high
        told = high < _FACTOR_KNOWN * low
        grew = units.between(*map(units.ratio, (low, high))) if told else units.UNKNOWN
        nats = (f"{x:.1g}" if x >= LEAST_NATS else "0" for x in (one.gap_nats, one.last_nats))
        lost = units.share(one.lost_tokens / one.tokens)
        rows.append((one.engine, *nats, grew, lost, units.count(one.versions)))
    titles = ("gap, nats", f"last {LAST}", ("growth, 95 %", 68), "tokens lost", ("versions", 76))
    notes = [f"{len(furthest) - len(rows)} more: --json"] if furthest[len(rows) :] else []
    if not gaps.alone:
        notes.append("The policy moved meanwhile, so only one engine against the others tells.")
    line = f"Samples of lag {gaps.lag}, of each engine against the learner's own log-probs."
    return Section(_GAPS, (line,), table(rows, "engine", *numbers(*titles)), tuple(notes))


@dataclass(frozen=True)
class _Bar:
    """A row of the histogram: lags from `first` to `last` (None: unknown)."""

    first: int | None
    last: int | None
    trajectories: int

    @property
    def label(self) -> str:
        return "unknown" if self.first is None else units.between(str(self.first), str(self.last))


def _lag_bars(lags: Staleness) -> list[_Bar]:
    """By lag, in ranges where there are many, and what is unknown: columns add up."""
    counts = {one.lag: one.trajectories for one in lags.by_first_token}
    by_token = [span.least for span in lags.by_token.spans if span.least is not None]
    known = [lag for lag in counts if lag is not None] + by_token
    bars: list[_Bar] = []
    if known:
        least, most = min(known), max(known)
        wide = -(-(most - least + 1) // _MOST_LAGS)
        for first in range(least, most + 1, wide):
            within = range(first, first + wide)
            n = sum(counts.get(lag, 0) for lag in within)
            if n or lags.by_token.share(first, within[-1])[1] > 0:
                bars.append(_Bar(first, within[-1], n))
    if None in counts or lags.by_token.known_tokens < lags.by_token.tokens:
        bars.append(_Bar(None, None, counts.get(None, 0)))
    return bars


def _of_tokens(one: _Bar, by_token: TokenLags) -> str:
    """`43 %`, or `43 % (30 to 55)` where versions changed during generation."""
    if not by_token.tokens:
        return units.UNKNOWN
    if one.first is None or one.last is None:
        return units.share(1 - by_token.known_tokens / by_token.tokens)
    low, even, high = by_token.share(one.first, one.last)
    least, most = f"{100 * low:.0f}", f"{100 * high:.0f}"
    return units.share(even) + (f" ({least} to {most})" if least != most else "")


def _by_token(by_token: TokenLags) -> str:
    """` (by token 0.8, 0.5 to 1.1)`; nothing where no token's lag is known."""
    if not by_token.known_tokens:
        return ""
    low, high = units.number(by_token.mean_lag.low), units.number(by_token.mean_lag.high)
    between = "" if low == high else f", between {low} and {high}"
    return f" (by token {units.number(by_token.mean_lag.value)}{between})"


_FULL = 0.95


def has_tail(tail: Tail) -> bool:
    rewards = tail.reward_latency_s.n or tail.untimed_rewards
    return bool(tail.latency_s.n or tail.unended or rewards)


def tail_section(tail: Tail) -> Section:
    rows = []
    for name, spread, show in (
        ("response tokens", tail.response_tokens, units.count),
        ("latency", tail.latency_s, units.seconds),
        ("to first token", tail.first_token_s, units.seconds),
        ("reward latency", tail.reward_latency_s, units.seconds),
    ):
        if spread.n:
            times = map(show, (spread.p50, spread.p95, spread.p99, spread.largest))
            rows.append((name, *times, units.ratio(spread.tail_ratio), units.count(spread.n)))
    columns = numbers("p50", "p95", "p99", ("max", 76), "p95/p50", ("n", 68))
    lines, notes = tuple(_draining(tail.slots)), tuple(_tail_notes(tail))
    return Section("Tail", lines, table(rows, "trajectories", *columns), notes)


def _draining(slots: SlotUse | None) -> Iterator[str]:
    if slots is None or not slots.batches or slots.used_share.mean >= _FULL:
        return
    times = slots.span_s.mean, slots.last_tenth_s.mean, slots.no_idle_span_s
    batch, last, no_idle = map(units.seconds, times)
    used, of_last = map(units.share, (slots.used_share.mean, slots.last_tenth_share.mean))
    yield (
        f"{used} of the engines' slots are in use. A batch takes {batch}, its last 10 % {last} "
        f"({of_last}). With all slots in use it would take {no_idle}."
    )


def _tail_notes(tail: Tail) -> Iterator[str]:
    if known := [f"{word} {units.count(n)}" for word, n in tail.finishes if word != "unknown"]:
        yield f"Samples ended by {', '.join(known)}."
    if tail.unended:
        yield f"{units.plural(tail.unended, 'more sample')} began and never ended."
    if tail.untimed_rewards:
        yield f"{units.plural(tail.untimed_rewards, 'reward')} recorded without a duration."
    if tail.failed_rewards:
        yield f"{units.plural(tail.failed_rewards, 'reward')} timed out or failed."
