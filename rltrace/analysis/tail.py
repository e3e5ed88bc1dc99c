"""How long responses are and how long they take: the tail that a barrier waits for, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.codes import named
from rltrace.analysis.generated import Generated, ended_within, read_generated
from rltrace.analysis.order_statistics import (
    fitted_log_deviation,
    longest_of,
    split_log_variance,
    variation,
)
from rltrace.analysis.slots import Slots, slots
from rltrace.analysis.spread import Spread, spread_of
from rltrace.analysis.steps import Steps
from rltrace.analysis.tail_causes import TailCauses, tail_causes
from rltrace.trace.vocabulary import Finish

if TYPE_CHECKING:
    from rltrace.trace.run import Run


@dataclass(frozen=True)
class Lengths:
    """How unequal response lengths are. `between_groups` and `within_group` are log-deviations,
    whose squares add up: the longest of a group follows the second, that of a batch both. The
    `longest_of_...` are expected maxima of as many lengths drawn at random, exact from this run's
    (which its length limit has cut at `at_limit_share` of them), over the mean length;
    `longest_in_groups` is that of the groups as they were. `s` and `c`, of the lognormal with the
    same p95 / p50, are labels that make runs comparable, and nothing is computed from them."""

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
    ended (a word of the vocabulary or "unknown"); `unended` began, in the whole run, and did not
    end. `verdict_s` is the latency of the verdicts whose duration was recorded, `verdicts_untimed`
    are the others; `verdict_failures` of both failed. What there are too few trajectories for,
    and what of a batch or group that is not whole, is None."""

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
    rows = run.sql(f"select finish, count(*) from {ended} group by finish order by 2 desc")
    unended = run.sql("select count(*) from raw_trajectories where start_ns > 0 and end_ns < 0")
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
        finishes=tuple((named(Finish, code), n) for code, n in rows.fetchall()),
        unended=unended.fetchall()[0][0],
        verdict_s=spread_of(run, "(end_ns - start_ns) / 1e9", f"{judged} and end_ns > start_ns"),
        verdicts_untimed=untimed,
        verdict_failures=failed,
        lengths=_lengths(generated, tokens),
        causes=tail_causes(generated),
        slots=slots(generated),
    )


def _lengths(generated: Generated, tokens: Spread) -> Lengths | None:
    """How unequal lengths are; None where fewer than two are known."""
    known = generated.tokens[~np.isnan(generated.tokens)]
    if len(known) < 2 or not known.mean():
        return None
    grouped = (generated.group != -1) & ~np.isnan(generated.tokens)
    order = np.argsort(generated.group[grouped], kind="stable")
    _, first, sizes = np.unique(
        generated.group[grouped][order], return_index=True, return_counts=True
    )
    longest = np.maximum.reduceat(generated.tokens[grouped][order], first) if len(first) else first
    between, within = split_log_variance(generated.tokens[grouped], generated.group[grouped])
    group = int(np.median(sizes)) if len(sizes) else 0
    batches = [len(places) for places in generated.batches()]
    batch = int(np.median(batches)) if batches else 0
    s = fitted_log_deviation(tokens.p50, tokens.p95)
    limited = generated.at_limit[~np.isnan(generated.at_limit)]
    mean = float(known.mean())
    return Lengths(
        between_groups=between,
        within_group=within,
        group_size=group,
        longest_of_group=longest_of(known, group) / mean if group else float("nan"),
        longest_in_groups=float(longest.mean()) / mean if group else float("nan"),
        batch_size=batch,
        longest_of_batch=longest_of(known, batch) / mean if batch else float("nan"),
        at_limit_share=float(limited.mean()) if len(limited) else float("nan"),
        s=s,
        c=variation(s),
    )


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
    since, until = steps.steady_ns
    ended = f"where start_ns > 0 and end_ns >= start_ns and end_ns >= {since} and end_ns < {until}"
    made, judged = f"raw_trajectories {ended}", f"raw_rewards {ended}"
    latency = "(end_ns - start_ns) / 1e9"
    asked = (
        ("response tokens", "tokens", "response_tokens", f"{made} and response_tokens >= 0"),
        ("latency", "s", latency, made),
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
