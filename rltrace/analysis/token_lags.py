"""The lag of single tokens, where a trajectory's tokens are of several policy versions.

A trace has the versions of a trajectory's first and last token and no others. So the lag of every
token lies between two known ones, and which it is nobody recorded: what is exact is a range, and
within it the tokens are spread evenly over the lags. Over trajectories that began at any moment
between two updates that is right in the mean; of one trajectory it says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.analysis.samples import TRAINED_USES

if TYPE_CHECKING:
    from rltrace.trace.run import Run


@dataclass(frozen=True)
class TokenSpan:
    """Response tokens whose lag is at least `least` (the last token's) and at most `most` (the
    first token's), both in policy versions; None: unknown."""

    least: int | None
    most: int | None
    tokens: int


@dataclass(frozen=True)
class TokenLags:
    """All tokens that were trained on, once for each version that did, by what is known of their
    lag. The means are over those whose lag is known within a range (`known_tokens`): `mean` spreads
    each range evenly, `mean_low` and `mean_high` are what it can be. NaN where nothing is known.
    `mixed_tokens` are in ranges of more than one lag."""

    spans: tuple[TokenSpan, ...]
    tokens: int
    known_tokens: int
    mixed_tokens: int
    mean: float
    mean_low: float
    mean_high: float

    def share(self, first: int, last: int) -> tuple[float, float, float]:
        """`(low, even, high)`: the share of all tokens with a lag from `first` to `last`: those
        that surely have, with ranges spread evenly, and those that may. NaN without tokens."""
        if not self.tokens:
            return math.nan, math.nan, math.nan
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
        return surely / self.tokens, evenly / self.tokens, possibly / self.tokens


def token_lags(run: Run) -> TokenLags:
    """The lags of the tokens that `run` trained on."""
    rows = run.ask(f"""
        {TRAINED_USES},
        ranged as (
            select case when version >= 0 and first_version <= last_version
                        then version - last_version end as least,
                   case when version >= 0 and first_version <= last_version
                        then version - first_version end as most,
                   tokens
            from trained where tokens > 0)
        select least, most, sum(tokens)::bigint from ranged group by 1, 2 order by 1, 2
    """)
    return _summed([TokenSpan(*row) for row in rows])


def _summed(spans: Sequence[TokenSpan]) -> TokenLags:
    known = [
        (span.least, span.most, span.tokens)
        for span in spans
        if span.least is not None and span.most is not None
    ]
    tokens = sum(n for _, _, n in known)
    low = sum(least * n for least, _, n in known) / tokens if tokens else math.nan
    high = sum(most * n for _, most, n in known) / tokens if tokens else math.nan
    return TokenLags(
        spans=tuple(spans),
        tokens=sum(span.tokens for span in spans),
        known_tokens=tokens,
        mixed_tokens=sum(n for least, most, n in known if least < most),
        mean=(low + high) / 2,
        mean_low=low,
        mean_high=high,
    )
