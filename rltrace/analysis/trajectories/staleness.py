"""How old the data was that the learner trained on, in policy versions.

The lag of a trajectory is the version that trained on it minus the version that generated it, from
its first token and from its last (arXiv 2505.24298 bounds the same by its eta, in training steps).
One that several versions trained on has a lag with each: a use. A version that nobody recorded
gives an unknown lag, never zero.

The lag of a single token lies between those of the first and the last of its trajectory, over which
tokens are spread evenly. In the mean of many trajectories that is right; of one it says nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.stats.confidence_interval import Interval
from rltrace.analysis.timeline.interval_lookup import columns
from rltrace.analysis.timeline.steps import Steps
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.read.trajectory_lifecycle import TRAINED_USES
from rltrace.trace.untrusted_files import packaged_toml

LAG_UNIT = "policy versions"
_SQL = packaged_toml("analysis/data/sample_queries.toml")
LAG_OF_USES = f"{TRAINED_USES} {_SQL['lag_by_time']}"
"""`time_ns`, `lag` and whether that is `known`, of each use."""


@dataclass(frozen=True)
class LagBar:
    """All uses with one lag (None: unknown) and their response tokens."""

    lag: int | None
    trajectories: int
    tokens: int


@dataclass(frozen=True)
class TokenSpan:
    """Response tokens whose lag lies between two, in policy versions; None: unknown."""

    least: int | None
    most: int | None
    tokens: int


@dataclass(frozen=True)
class TokenLags:
    """All tokens that were trained on, once for each version that did. `mean_lag` is of those whose
    lag is known within a range (`known_tokens`): it spreads each range evenly, and its bounds are
    what it can be. `mixed_tokens` are in ranges of more than one lag."""

    spans: tuple[TokenSpan, ...]
    tokens: int
    known_tokens: int
    mixed_tokens: int
    mean_lag: Interval

    def share(self, first: int, last: int) -> tuple[float, float, float]:
        """`(low, even, high)`: the share of all tokens with a lag from `first` to `last`: those
        that surely have, with ranges spread evenly, and those that may. NaN without tokens."""
        surely = evenly = possibly = 0.0
        for span in self.spans:
            if span.least is None or span.most is None:
                continue
            inside = min(last, span.most) - max(first, span.least) + 1
            if inside > 0:
                width = span.most - span.least + 1
                surely += span.tokens * (inside == width)
                evenly += span.tokens * inside / width
                possibly += span.tokens
        tokens = self.tokens or math.nan
        return surely / tokens, evenly / tokens, possibly / tokens


@dataclass(frozen=True)
class UnknownTokens:
    reason: str
    tokens: int


@dataclass(frozen=True)
class Staleness:
    """The lags of all `trajectories` that were trained on, whole run; of `known_trajectories` the
    lag is known in every use. Lags and their means are of `uses`, `known_uses` of which tell
    theirs. `mixed_share` of `version_known_uses` saw a new version arrive as they were generated;
    the means in flight (from first to last token) and in queue (from the last token on) are of
    these too. `token_weighted_lag` takes every token for as old as the first of its trajectory."""

    trajectories: int
    known_trajectories: int
    uses: int
    known_uses: int
    by_first_token: tuple[LagBar, ...]
    by_last_token: tuple[LagBar, ...]
    mean_lag: float
    token_weighted_lag: float
    p95_lag: float
    largest_lag: int
    mixed_share: float
    version_known_uses: int
    mean_lag_in_flight: float
    mean_lag_in_queue: float
    by_token: TokenLags
    unknown_by_token: tuple[UnknownTokens, ...]
    unit: str = LAG_UNIT


def staleness(run: OpenedRun) -> Staleness:
    """Lag histograms of `run`; lags and shares are NaN (largest: -1) where nothing is known."""
    rows = run.ask(f"{TRAINED_USES} {_SQL['lags_of_uses']}")
    trajectories, known = run.ask(f"{TRAINED_USES}, {_SQL['known_lags']}")[0]
    first = _bars([(lag, n, tokens) for lag, _, _, n, tokens in rows])
    last = _bars([(lag, n, tokens) for _, lag, _, n, tokens in rows])
    flown = [(versions, n) for _, _, versions, n, *_ in rows if versions is not None]
    queued = [(lag, n) for _, lag, versions, n, *_ in rows if None not in (lag, versions)]
    uses = [(bar.lag, bar.trajectories) for bar in first]
    by_token, unknown = _by_token(rows)
    return Staleness(
        trajectories=trajectories,
        known_trajectories=known,
        uses=sum(n for _, n in uses),
        known_uses=sum(n for lag, n in uses if lag is not None),
        by_first_token=first,
        by_last_token=last,
        mean_lag=_mean(uses),
        token_weighted_lag=_mean([(bar.lag, bar.tokens) for bar in first]),
        p95_lag=_quantile(uses, 0.95),
        largest_lag=max((lag for lag, _ in uses if lag is not None), default=-1),
        mixed_share=_mean([(int(versions != 0), n) for versions, n in flown]),
        version_known_uses=sum(n for _, n in flown),
        mean_lag_in_flight=_mean(flown),
        mean_lag_in_queue=_mean(queued),
        by_token=by_token,
        unknown_by_token=unknown,
    )


_Row = tuple[int | None, int | None, int | None, int, int]
"""`(lag of the first token, of the last, versions between, uses, tokens)`"""


def _by_token(rows: list[_Row]) -> tuple[TokenLags, tuple[UnknownTokens, ...]]:
    known, unknown = Counter[tuple[int, int]](), Counter[str]()
    for first, last, versions, _, tokens in rows:
        if first is None or last is None or (versions or 0) < 0:
            unknown[_why_unknown(first, last, versions)] += tokens
        else:
            known[last, first] += tokens
    spans = [TokenSpan(*span, n) for span, n in sorted(known.items()) if n]
    if unknown.total():
        spans.append(TokenSpan(None, None, unknown.total()))
    low, high = (_mean([(span[end], n) for span, n in known.items()]) for end in range(2))
    lags = TokenLags(
        spans=tuple(spans),
        tokens=known.total() + unknown.total(),
        known_tokens=known.total(),
        mixed_tokens=sum(n for (least, most), n in known.items() if least < most),
        mean_lag=Interval((low + high) / 2, low, high),
    )
    return lags, tuple(UnknownTokens(why, n) for why, n in unknown.most_common() if n)


def _why_unknown(first: int | None, last: int | None, versions: int | None) -> str:
    if versions is not None and versions < 0:
        return "the version of their last token is older than that of their first"
    if versions is not None:
        return "the version that trained on them was not recorded"
    if first is not None:
        return "the version of their last token was not recorded"
    if last is not None:
        return "the version of their first token was not recorded"
    return "which versions generated them and trained on them was not recorded"


def _bars(rows: list[tuple[int | None, int, int]]) -> tuple[LagBar, ...]:
    counts, tokens = Counter[int | None](), Counter[int | None]()
    for lag, n, of_tokens in rows:
        counts[lag] += n
        tokens[lag] += of_tokens
    lags = sorted(counts, key=lambda lag: (lag is None, lag or 0))
    return tuple(LagBar(lag, counts[lag], tokens[lag]) for lag in lags)


def _mean(counts: Sequence[tuple[int | None, int]]) -> float:
    """Of `(value or None, how often it comes)`; NaN where none is known."""
    known = [(value, count) for value, count in counts if value is not None]
    total = sum(count for _, count in known)
    return sum(value * count for value, count in known) / total if total else math.nan


def _quantile(counts: Sequence[tuple[int | None, int]], share: float) -> float:
    """The smallest lag that `share` of the uses of known lag do not exceed."""
    lags = np.array([lag for lag, _ in counts if lag is not None], np.float64)
    below = np.cumsum([count for lag, count in counts if lag is not None])
    return float(lags[np.searchsorted(below, share * below[-1])]) if len(lags) else math.nan


@dataclass(frozen=True)
class LagsOfSteps:
    """Uses in the steps from `first` to `last` (-1: no steps), by range in `LagHistory.lags`."""

    first: int
    last: int
    counts: tuple[int, ...]
    unknown: int

    @property
    def trajectories(self) -> int:
        return sum(self.counts) + self.unknown


@dataclass(frozen=True)
class LagHistory:
    """`lags` are ranges of lag in policy versions, both ends included."""

    lags: tuple[tuple[int, int], ...]
    steps: tuple[LagsOfSteps, ...]


def lag_history(run: OpenedRun, steps: Steps, most_steps: int, most_lags: int) -> LagHistory | None:
    """Groups of steps and ranges of lags of the first token; None: nothing was trained on. What was
    trained on between steps counts to the step before."""
    time, lag, known = columns(run, LAG_OF_USES)
    if not len(time):
        return None
    told, windows = known == 1, steps.windows
    place = np.searchsorted(steps.starts_ns, time, side="right") - 1
    width = max(1, -(-len(windows) // most_steps))
    column = place.clip(0, max(0, len(windows) - 1)) // width
    least, largest = (int(lag[told].min()), int(lag[told].max())) if told.any() else (0, -1)
    wide = max(1, -(-(largest - least + 1) // most_lags))
    ranges = [(low, low + wide - 1) for low in range(least, largest + 1, wide)]
    row = np.searchsorted([low for low, _ in ranges], lag, side="right") - 1
    found = []
    for one in np.unique(column).tolist():
        here = column == one
        counts = np.bincount(row[here & told], minlength=len(ranges))
        of = windows[one * width : (one + 1) * width]
        first, last = (of[0].step, of[-1].step) if of else (-1, -1)
        found.append(LagsOfSteps(first, last, tuple(counts.tolist()), int((here & ~told).sum())))
    return LagHistory(tuple(ranges), tuple(found))
