"""How long responses are and how long they take: the tail that a barrier waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rltrace.analysis.slots import Slots, ended_within, slots
from rltrace.analysis.stats.spread import Spread, spread_of
from rltrace.analysis.steps import Steps
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Finish, named


@dataclass(frozen=True)
class Tail:
    """The trajectories that ended after warm-up; tokens and seconds. `finishes` counts how they
    ended; `unended` began, in the whole run, and did not end. `verdict_s` is the latency of the
    verdicts whose duration was recorded, `verdicts_untimed` are the others; `verdict_failures` of
    both failed."""

    response_tokens: Spread
    latency_s: Spread
    first_token_s: Spread
    finishes: tuple[tuple[str, int], ...]
    unended: int
    verdict_s: Spread
    verdicts_untimed: int
    verdict_failures: int
    slots: Slots | None


def tail(run: Run, steps: Steps) -> Tail:
    within = ended_within(steps)
    ended, judged = f"raw_trajectories where {within}", f"raw_rewards where {within}"
    rows = run.ask(f"select finish, count(*) from {ended} group by finish order by 2 desc")
    unended = "select count(*) from raw_trajectories where start_ns > 0 and end_ns < 0"
    untimed, failed = run.ask(
        f"select count(*) filter (end_ns = start_ns), count(*) filter (outcome > 0) from {judged}"
    )[0]
    tokens, latency, verdicts = (spread_of(run, *asked) for *_, asked in _asked(steps))
    return Tail(
        response_tokens=tokens,
        latency_s=latency,
        first_token_s=spread_of(
            run, "(first_token_ns - start_ns) / 1e9", f"{ended} and first_token_ns >= start_ns"
        ),
        finishes=tuple((named(Finish, code), n) for code, n in rows),
        unended=run.ask(unended)[0][0],
        verdict_s=verdicts,
        verdicts_untimed=untimed,
        verdict_failures=failed,
        slots=slots(run, steps),
    )


def _asked(steps: Steps) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """What trajectories took: names, units, and the SQL of the values with where they are."""
    within, latency = ended_within(steps), "(end_ns - start_ns) / 1e9"
    ended = f"raw_trajectories where {within}"
    yield "response tokens", "tokens", ("response_tokens", f"{ended} and response_tokens >= 0")
    yield "latency", "s", (latency, ended)
    judged = f"raw_rewards where {within} and end_ns > start_ns"
    yield "verdict latency", "s", (latency, judged)


# --- whole distributions of what `tail` sums up

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
    found = []
    for name, unit, (expression, source) in _asked(steps):
        n, values = run.ask(
            f"select count(x), quantile_cont(x, {list(SHARES)}) "
            f"from (select ({expression})::double as x from {source})"
        )[0]
        if n:
            found.append(Distribution(name, unit, n, tuple(values)))
    return tuple(found)
