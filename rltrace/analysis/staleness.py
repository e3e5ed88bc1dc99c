"""How old the data was that the learner trained on, in policy versions.

The lag of a trajectory is the version that trained on it minus the version that generated it, from
its first token and from its last (arXiv 2505.24298 bounds the same quantity by its eta, counted in
training steps). A version that nobody recorded gives an unknown lag, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.analysis.samples import TRAINED_SAMPLES
from rltrace.analysis.token_lags import TokenLags, token_lags

if TYPE_CHECKING:
    from rltrace.trace.run import Run

LAG_UNIT = "policy versions"


@dataclass(frozen=True)
class LagBar:
    """All trained trajectories with one lag (None: unknown) and their response tokens."""

    lag: int | None
    trajectories: int
    tokens: int


@dataclass(frozen=True)
class Staleness:
    """The lags of all trajectories that were trained on, whole run. `mixed_share` is the part whose
    generation saw a new version arrive, of the `versions_known` for which that is known; the means
    in flight (from first to last token) and in queue (from the last token on) are of these too.
    `token_weighted_lag` takes every token for as old as the first of its trajectory; `by_token`
    does not."""

    trajectories: int
    known: int
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
    unit: str = LAG_UNIT


def staleness(run: Run) -> Staleness:
    """Lag histograms of `run`; lags and shares are NaN (largest: -1) where nothing is known."""
    query = f"""
        {TRAINED_SAMPLES}
        select case when version >= 0 then version - {{}} end as lag, count(*),
               coalesce(sum(tokens), 0)::bigint
        from trained group by 1 order by 1
    """
    first = _bars(run.sql(query.format("first_version")).fetchall())
    last = _bars(run.sql(query.format("last_version")).fetchall())
    both, mixed, in_flight, in_queue = run.sql(f"""
        {TRAINED_SAMPLES}
        select count(*), count(*) filter (first_version <> last_version),
               avg(last_version - first_version), avg(nullif(version, -1) - last_version)
        from trained where first_version is not null and last_version is not null
    """).fetchall()[0]
    bars = [(bar.lag, bar) for bar in first if bar.lag is not None]
    known = sum(bar.trajectories for _, bar in bars)
    tokens = sum(bar.tokens for _, bar in bars)
    nan = float("nan")
    return Staleness(
        trajectories=sum(bar.trajectories for bar in first),
        known=known,
        by_first_token=first,
        by_last_token=last,
        mean_lag=sum(lag * b.trajectories for lag, b in bars) / known if known else nan,
        token_weighted_lag=sum(lag * b.tokens for lag, b in bars) / tokens if tokens else nan,
        p95_lag=_quantile([(lag, b.trajectories) for lag, b in bars], 0.95),
        largest_lag=max((lag for lag, _ in bars), default=-1),
        mixed_share=mixed / both if both else nan,
        versions_known=both,
        mean_in_flight=nan if in_flight is None else in_flight,
        mean_in_queue=nan if in_queue is None else in_queue,
        by_token=token_lags(run),
    )


def _bars(rows: list[tuple[int | None, int, int]]) -> tuple[LagBar, ...]:
    """Bars in the order of the lag, the unknown one last."""
    bars = [LagBar(lag, count, tokens) for lag, count, tokens in rows]
    return tuple(sorted(bars, key=lambda bar: (bar.lag is None, bar.lag or 0)))


def _quantile(counts: list[tuple[int, int]], share: float) -> float:
    """The smallest lag that at least `share` of the trajectories do not exceed."""
    total, below = sum(count for _, count in counts), 0
    for lag, count in counts:
        below += count
        if below >= share * total:
            return float(lag)
    return float("nan")
