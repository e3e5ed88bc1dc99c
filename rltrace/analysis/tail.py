"""How long responses are and how long they take: the tail that a barrier waits for, and why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.codes import named
from rltrace.analysis.generated import Floats, Generated, ended_within, read_generated
from rltrace.analysis.order_statistics import (
    fitted_log_deviation,
    longest_of,
    split_log_variance,
    variation,
)
from rltrace.analysis.slots import Slots, slots
from rltrace.analysis.stats.spread import Spread, spread_of
from rltrace.analysis.steps import Steps
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Finish


@dataclass(frozen=True)
class Lengths:
    """How unequal response lengths are. `between_groups` and `within_group` are log-deviations,
    whose squares add up: the longest of a group follows the second, that of a batch both. The
    `longest_of_...` are expected maxima of as many lengths drawn at random, exact from this run's,
    over the mean length; `longest_in_groups` is that of the groups as they were. `s` and `c`, of
    the lognormal with the same p95 / p50, are labels that make runs comparable."""

    between_groups: float
    within_group: float
    group_size: int
    longest_of_group: float
    longest_in_groups: float
    batch_size: int
    longest_of_batch: float
    at_limit_share: float
    s: float
    c: float


@dataclass(frozen=True)
class Tail:
    """The trajectories that ended after warm-up; tokens and seconds. `finishes` counts how they
    ended; `unended` began, in the whole run, and did not end. `verdict_s` is the latency of the
    verdicts whose duration was recorded, `verdicts_untimed` are the others; `verdict_failures` of
    both failed. What there are too few trajectories for, and what of a batch or group that is not
    whole, is None."""

    response_tokens: Spread
    latency_s: Spread
    first_token_s: Spread
    finishes: tuple[tuple[str, int], ...]
    unended: int
    verdict_s: Spread
    verdicts_untimed: int
    verdict_failures: int
    lengths: Lengths | None
    causes: TailCauses | None
    slots: Slots | None


def tail(run: Run, steps: Steps, placement: str = "") -> Tail:
    """The tail of `run`. `placement` is what is known of it: an async one generates no batches."""
    within = ended_within(steps)
    ended, judged = f"raw_trajectories where {within}", f"raw_rewards where {within}"
    rows = run.ask(f"select finish, count(*) from {ended} group by finish order by 2 desc")
    unended = "select count(*) from raw_trajectories where start_ns > 0 and end_ns < 0"
    untimed, failed = run.ask(
        f"select count(*) filter (end_ns = start_ns), count(*) filter (outcome > 0) from {judged}"
    )[0]
    generated = read_generated(run, steps, placement)
    tokens = spread_of(run, "response_tokens", f"{ended} and response_tokens >= 0")
    return Tail(
        response_tokens=tokens,
        latency_s=spread_of(run, "(end_ns - start_ns) / 1e9", ended),
        first_token_s=spread_of(
            run, "(first_token_ns - start_ns) / 1e9", f"{ended} and first_token_ns >= start_ns"
        ),
        finishes=tuple((named(Finish, code), n) for code, n in rows),
        unended=run.ask(unended)[0][0],
        verdict_s=spread_of(run, "(end_ns - start_ns) / 1e9", f"{judged} and end_ns > start_ns"),
        verdicts_untimed=untimed,
        verdict_failures=failed,
        lengths=_lengths(generated, tokens),
        causes=tail_causes(generated),
        slots=slots(generated),
    )


def _lengths(generated: Generated, tokens: Spread) -> Lengths | None:
    """How unequal lengths are; None where fewer than two are known."""
    is_known = ~np.isnan(generated.tokens)
    known = generated.tokens[is_known]
    if len(known) < 2 or not known.mean():
        return None
    grouped = is_known & (generated.group != -1)
    lengths, of_group = generated.tokens[grouped], generated.group[grouped]
    _, number, sizes = np.unique(of_group, return_inverse=True, return_counts=True)
    longest = np.full(len(sizes), -np.inf)
    np.maximum.at(longest, number, lengths)
    between, within = split_log_variance(lengths, of_group)
    batches = [len(places) for places in generated.batches()]
    group = int(np.median(sizes)) if len(sizes) else 0
    batch = int(np.median(batches)) if batches else 0
    s = fitted_log_deviation(tokens.p50, tokens.p95)
    mean, nan = float(known.mean()), float("nan")
    return Lengths(
        between_groups=between,
        within_group=within,
        group_size=group,
        longest_of_group=longest_of(known, group) / mean if group else nan,
        longest_in_groups=float(longest.mean()) / mean if group else nan,
        batch_size=batch,
        longest_of_batch=longest_of(known, batch) / mean if batch else nan,
        at_limit_share=_share(generated.at_limit),
        s=s,
        c=variation(s),
    )


# --- why p95 is p95: the slowest trajectories against the usual ones, cause by cause
# The trajectories from the 95th percentile of their time on are set against those from the 40th to
# the 60th. A trajectory's time is its wait to begin (where a step's trajectories begin together),
# the time to its first token (queue in the engine, and prefill), its tools, its decoding and its
# verdicts. Decoding is split by what a token costs a usual trajectory: more tokens at that price
# are length, and the rest is charged to what befell the trajectory (cut short, preempted, new
# weights under way), or to slower decoding where nothing did. All are differences of means, so they
# add up.

_FEWEST = 5
"""With fewer trajectories from p95 on nothing is said."""
_MOSTLY = 0.5
_NO_TAIL = 0.2
_DUST = 1e-6  # differences of equal means leave some


@dataclass(frozen=True)
class Cause:
    """Seconds by which the slowest exceed the usual for one reason, and their share of all."""

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
    to it, the largest first. `unknown` parts of the time, which nobody recorded, are in the others.
    """

    slowest: int
    usual: int
    slowest_s: float
    usual_s: float
    gap_s: float
    causes: tuple[Cause, ...]
    marks: tuple[Mark, ...]
    unknown: tuple[str, ...]


DECODING = "slower decoding"


def tail_causes(generated: Generated) -> TailCauses | None:
    """The causes; None where there are too few trajectories to have a tail."""
    if not len(generated):
        return None
    tokens, begin = generated.tokens, np.full(len(generated), np.nan)
    for places in generated.batches():
        start = generated.start_ns[places]
        begin[places] = (start - start.min()) / 1e9
    parts = {
        "wait to begin": begin,
        "to the first token": generated.first_token_s,
        "tools": generated.env_s,
        "verdict": generated.verdict_s,
    }
    # A part that most of them do not tell is nothing in itself.
    unknown = [name for name, values in parts.items() if np.isnan(values).mean() > _MOSTLY]
    parts |= dict.fromkeys(unknown, np.zeros(len(generated)))
    begin, first_token, tools, verdict = parts.values()
    known = np.logical_and.reduce([~np.isnan(values) for values in parts.values()])
    total = np.where(known, generated.latency_s + verdict + begin, np.nan)
    if known.sum() * 0.05 < _FEWEST:
        return None
    low, high, p95 = np.quantile(total[known], (0.4, 0.6, 0.95))
    slow = known & (total >= p95)
    usual = known & (total >= low) & (total <= high)
    if slow.sum() > _NO_TAIL * known.sum():  # so many share the longest time
        return None

    def gap(values: Floats) -> float:
        return float(values[slow].mean() - values[usual].mean())

    befell = {  # what may make a token cost more, the stronger reason first
        "cut short": generated.cut_short,
        "preempted": generated.preempted,
        "new weights under way": generated.mixed,
    }
    gaps = {name: gap(values) for name, values in parts.items()}
    decoding = generated.latency_s - first_token - tools
    if np.isnan(tokens[slow | usual]).any():
        unknown.append("response tokens")
    else:
        price_s = float(decoding[usual].sum() / max(tokens[usual].sum(), 1.0))
        gaps["length"] = gap(tokens * price_s)
        decoding = decoding - tokens * price_s
        for name, flags in befell.items():
            gaps[name] = gap(np.where(flags == 1, decoding, 0.0))
            decoding = np.where(flags == 1, 0.0, decoding)
    gaps[DECODING] = gap(decoding)
    gap_s = gap(total)
    causes = [
        Cause(name, seconds, seconds / gap_s)
        for name, seconds in gaps.items()
        if abs(seconds) > _DUST * gap_s
    ]
    marks = {"at the length limit": generated.at_limit, **befell}
    return TailCauses(
        slowest=int(slow.sum()),
        usual=int(usual.sum()),
        slowest_s=float(total[slow].mean()),
        usual_s=float(total[usual].mean()),
        gap_s=gap_s,
        causes=tuple(sorted(causes, key=lambda cause: -cause.seconds)),
        marks=tuple(
            Mark(name, _share(flags[slow]), _share(flags[usual]))
            for name, flags in marks.items()
            if not np.isnan(flags).all()
        ),
        unknown=tuple(unknown),
    )


def _share(flags: Floats) -> float:
    known = flags[~np.isnan(flags)]
    return float(known.mean()) if len(known) else float("nan")


# --- whole distributions of what trajectories took, of the same ones that `tail` sums up

SHARES = (
    *(0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65),
    *(0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0),
)
"""The quantiles that a distribution is drawn with; more of them in the tail."""


@dataclass(frozen=True)
class Distribution:
    """`values[i]` is the quantile at `SHARES[i]` of `n` values; `unit` is "tokens" or "s"."""

    name: str
    unit: str
    n: int
    values: tuple[float, ...]


def distributions(run: Run, steps: Steps) -> tuple[Distribution, ...]:
    """Response tokens, latency and verdict latency, as far as they were recorded."""
    within = ended_within(steps)
    ended, judged = f"raw_trajectories where {within}", f"raw_rewards where {within}"
    latency = "(end_ns - start_ns) / 1e9"
    asked = (
        ("response tokens", "tokens", "response_tokens", f"{ended} and response_tokens >= 0"),
        ("latency", "s", latency, ended),
        ("verdict latency", "s", latency, f"{judged} and end_ns > start_ns"),
    )
    found = []
    for name, unit, expression, source in asked:
        n, values = run.ask(
            f"select count(x), quantile_cont(x, {list(SHARES)}) "
            f"from (select ({expression})::double as x from {source})"
        )[0]
        if n:
            found.append(Distribution(name, unit, n, tuple(values)))
    return tuple(found)
