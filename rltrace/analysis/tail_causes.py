"""Why p95 is p95: the slowest trajectories against the usual ones, cause by cause.

The trajectories from the 95th percentile of their time on are set against those from the 40th to
the 60th. A trajectory's time is its wait to begin (where a step's trajectories begin together), the
time to its first token (queue in the engine, and prefill), its tools, its decoding and its
verdicts. Decoding is split by what a token costs a usual trajectory: more tokens at that price are
length, and the rest is charged to what befell the trajectory (cut short, preempted, new weights
under way), or to slower decoding where nothing did. All are differences of means, so they add up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.generated import Floats, Generated
from rltrace.analysis.intervals import Bools

FEWEST = 5
"""With fewer trajectories from p95 on nothing is said."""
_MOSTLY = 0.5
_NO_TAIL = 0.2
_DUST = 1e-6  # differences of equal means leave some


@dataclass(frozen=True)
class Cause:
    """Seconds by which the slowest exceed the usual for one reason; `share` is of all they exceed
    (negative where the reason made them faster)."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True)
class Mark:
    """What befell trajectories: the part of the slowest and of the usual ones (NaN: unknown)."""

    name: str
    of_slowest: float
    of_usual: float


@dataclass(frozen=True)
class TailCauses:
    """`slowest` trajectories take `gap_s` longer in the mean than the `usual` ones; `causes` add up
    to it, the largest first. `unknown` are parts of the time that nobody recorded: they are in the
    others."""

    slowest: int
    usual: int
    slowest_s: float
    usual_s: float
    gap_s: float
    causes: tuple[Cause, ...]
    marks: tuple[Mark, ...]
    unknown: tuple[str, ...]


def tail_causes(generated: Generated) -> TailCauses | None:
    """The causes; None where there are too few trajectories to have a tail."""
    if not len(generated):
        return None
    parts, unknown = _parts(generated)
    known = np.logical_and.reduce([~np.isnan(values) for values in parts.values()])
    total = generated.latency_s + parts[VERDICT] + parts[BEGIN]
    total = np.where(known, total, np.nan)
    if known.sum() * 0.05 < FEWEST:
        return None
    low, high, p95 = np.quantile(total[known], (0.4, 0.6, 0.95))
    slow = known & (total >= p95)
    usual = known & (total >= low) & (total <= high)
    if slow.sum() > _NO_TAIL * known.sum():  # so many share the longest time
        return None
    decoding = generated.latency_s - parts[FIRST_TOKEN] - parts[TOOLS]
    gaps = {name: _gap(values, slow, usual) for name, values in parts.items()}
    if np.isnan(generated.tokens[slow | usual]).any():
        unknown = (*unknown, "response tokens")
        gaps[DECODING] = _gap(decoding, slow, usual)
    else:
        gaps |= _decoding(generated, decoding, slow, usual)
    gap_s = _gap(total, slow, usual)
    causes = [
        Cause(name, seconds, seconds / gap_s)
        for name, seconds in gaps.items()
        if abs(seconds) > _DUST * gap_s
    ]
    return TailCauses(
        slowest=int(slow.sum()),
        usual=int(usual.sum()),
        slowest_s=float(total[slow].mean()),
        usual_s=float(total[usual].mean()),
        gap_s=gap_s,
        causes=tuple(sorted(causes, key=lambda cause: -cause.seconds)),
        marks=tuple(
            Mark(name, _share(values[slow]), _share(values[usual]))
            for name, values in (
                ("at the length limit", generated.at_limit),
                *_befell(generated),
            )
            if not np.isnan(values).all()
        ),
        unknown=unknown,
    )


BEGIN = "wait to begin"
FIRST_TOKEN = "to the first token"
TOOLS = "tools"
LENGTH = "length"
DECODING = "slower decoding"
VERDICT = "verdict"


def _parts(generated: Generated) -> tuple[dict[str, Floats], tuple[str, ...]]:
    """Seconds of each trajectory in each part but decoding, and the parts that most of them do not
    tell. Such a part is nothing in itself."""
    zero = np.zeros(len(generated))
    begin = np.full(len(generated), np.nan)
    for places in generated.batches():
        start = generated.start_ns[places]
        begin[places] = (start - start.min()) / 1e9
    parts = {
        BEGIN: begin,
        FIRST_TOKEN: generated.first_token_s,
        TOOLS: generated.env_s,
        VERDICT: generated.verdict_s,
    }
    unknown = tuple(name for name, values in parts.items() if np.isnan(values).mean() > _MOSTLY)
    return {name: zero if name in unknown else v for name, v in parts.items()}, unknown


def _befell(generated: Generated) -> tuple[tuple[str, Floats], ...]:
    """What may make a token cost more, the stronger reason first."""
    return (
        ("cut short", generated.cut_short),
        ("preempted", generated.preempted),
        ("new weights under way", generated.mixed),
    )


def _decoding(
    generated: Generated, decoding: Floats, slow: Bools, usual: Bools
) -> dict[str, float]:
    tokens = generated.tokens
    price_s = float(decoding[usual].sum() / max(tokens[usual].sum(), 1.0))
    rest = decoding - tokens * price_s
    gaps = {LENGTH: _gap(tokens * price_s, slow, usual)}
    left = np.ones(len(tokens), np.bool_)
    for name, befell in _befell(generated):
        mine = left & (befell == 1)
        gaps[name] = _gap(np.where(mine, rest, 0.0), slow, usual)
        left &= ~mine
    gaps[DECODING] = _gap(np.where(left, rest, 0.0), slow, usual)
    return gaps


def _gap(values: Floats, slow: Bools, usual: Bools) -> float:
    return float(values[slow].mean() - values[usual].mean())


def _share(flags: Floats) -> float:
    known = flags[~np.isnan(flags)]
    return float(known.mean()) if len(known) else float("nan")
