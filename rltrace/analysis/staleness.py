"""How old the data was that the learner trained on, in policy versions.

The lag of a trajectory is the version that trained on it minus the version that generated it, from
its first token and from its last (arXiv 2505.24298 bounds the same quantity by its eta, counted in
training steps). One that several versions trained on has a lag with each: a use. A version that
nobody recorded gives an unknown lag, never zero.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.analysis.samples import TRAINED_USES
from rltrace.analysis.token_lags import TokenLags, token_lags

if TYPE_CHECKING:
    from rltrace.trace.run import Run

LAG_UNIT = "policy versions"


@dataclass(frozen=True)
class LagBar:
    """All trajectories that were trained on with one lag (None: unknown) and their response tokens;
    one that several versions trained on is in several bars."""

    lag: int | None
    trajectories: int
    tokens: int


@dataclass(frozen=True)
class UnknownTokens:
    """Response tokens whose own lag is not known, and why."""

    why: str
    tokens: int


@dataclass(frozen=True)
class Staleness:
    """The lags of all trajectories that were trained on, whole run: `trajectories`, of `known` of
    which the lag is known in every use. Lags and their means are of `uses`, `known_uses` of which
    tell theirs. `mixed_share` is the part whose generation saw a new version arrive, of the
    `versions_known` uses for which that is known; the means in flight (from first to last token)
    and in queue (from the last token on) are of these too. `token_weighted_lag` takes every token
    for as old as the first of its trajectory; `by_token` does not, and `unknown_by_token` says why
    where it knows none, the most tokens first."""

    trajectories: int
    known: int
    uses: int
    known_uses: int
    by_first_token: tuple[LagBar, ...]
    by_last_token: tuple[LagBar, ...]
    mean_lag: float
    token_weighted_lag: float
    p95_lag: float
    largest_lag: int
    mixed_share: float
    versions_known: int
    mean_in_flight: float
    mean_in_queue: float
    by_token: TokenLags
    unknown_by_token: tuple[UnknownTokens, ...]
    unit: str = LAG_UNIT


def staleness(run: Run) -> Staleness:
    """Lag histograms of `run`; lags and shares are NaN (largest: -1) where nothing is known."""
    rows = run.ask(f"""
        {TRAINED_USES}
        select case when version >= 0 then version - first_version end,
               case when version >= 0 then version - last_version end,
               last_version - first_version, count(*), coalesce(sum(tokens), 0)::bigint
        from trained group by 1, 2, 3
    """)
    trajectories, known = run.ask(f"""
        {TRAINED_USES},
        sampled as (
            select bool_and(version >= 0 and first_version is not null) as known
            from trained where trajectory is not null group by trajectory
            union all
            select version >= 0 and first_version is not null from trained where trajectory is null)
        select count(*), count(*) filter (known) from sampled
    """)[0]
    first = _bars([(lag, n, tokens) for lag, _, _, n, tokens in rows])
    last = _bars([(lag, n, tokens) for _, lag, _, n, tokens in rows])
    flown = [(versions, n) for _, _, versions, n, _ in rows if versions is not None]
    queued = [(lag, n) for _, lag, versions, n, _ in rows if None not in (lag, versions)]
    both = sum(n for _, n in flown)
    bars = [(bar.lag, bar) for bar in first if bar.lag is not None]
    known_uses = sum(bar.trajectories for _, bar in bars)
    return Staleness(
        trajectories=trajectories,
        known=known,
        uses=sum(bar.trajectories for bar in first),
        known_uses=known_uses,
        by_first_token=first,
        by_last_token=last,
        mean_lag=_mean([(lag, b.trajectories) for lag, b in bars]),
        token_weighted_lag=_mean([(lag, b.tokens) for lag, b in bars]),
        p95_lag=_quantile([(lag, b.trajectories) for lag, b in bars], 0.95),
        largest_lag=max((lag for lag, _ in bars), default=-1),
        mixed_share=_mean([(int(versions != 0), n) for versions, n in flown]),
        versions_known=both,
        mean_in_flight=_mean(flown),
        mean_in_queue=_mean(queued),
        by_token=token_lags(run),
        unknown_by_token=_unknown_by_token(rows),
    )


def _unknown_by_token(
    rows: list[tuple[int | None, int | None, int | None, int, int]],
) -> tuple[UnknownTokens, ...]:
    """Why tokens have no lag: of `(lag of the first token, of the last, versions between, uses,
    tokens)`."""
    found: Counter[str] = Counter()
    for first, last, versions, _, tokens in rows:
        if why := _why_unknown(first, last, versions):
            found[why] += tokens
    return tuple(UnknownTokens(why, n) for why, n in found.most_common() if n > 0)


def _why_unknown(first: int | None, last: int | None, versions: int | None) -> str:
    """Why the lag of single tokens is not known; empty where it is, within a range."""
    if versions is not None and versions < 0:
        return "the version of their last token is older than that of their first"
    if first is not None and last is not None:
        return ""
    if versions is not None:
        return "the version that trained on them was not recorded"
    if first is not None:
        return "the version of their last token was not recorded"
    if last is not None:
        return "the version of their first token was not recorded"
    return "which versions generated them and trained on them was not recorded"


def _bars(rows: list[tuple[int | None, int, int]]) -> tuple[LagBar, ...]:
    """Bars in the order of the lag, the unknown one last."""
    sums: dict[int | None, tuple[int, int]] = {}
    for lag, count, tokens in rows:
        n, m = sums.get(lag, (0, 0))
        sums[lag] = n + count, m + tokens
    bars = [LagBar(lag, *both) for lag, both in sums.items()]
    return tuple(sorted(bars, key=lambda bar: (bar.lag is None, bar.lag or 0)))


def _mean(counts: list[tuple[int, int]]) -> float:
    """Of values that each come as often as told; NaN where none does."""
    total = sum(count for _, count in counts)
    return sum(value * count for value, count in counts) / total if total else math.nan


def _quantile(counts: list[tuple[int, int]], share: float) -> float:
    """The smallest lag that at least `share` of the uses do not exceed."""
    total, below = sum(count for _, count in counts), 0
    for lag, count in counts:
        below += count
        if below >= share * total:
            return float(lag)
    return math.nan
