"""How long responses are and how long they take: the tail that a barrier waits for."""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.analysis.generated import ended_within, read_generated
from rltrace.analysis.slots import Slots, slots
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
    return Tail(
        response_tokens=spread_of(run, "response_tokens", f"{ended} and response_tokens >= 0"),
        latency_s=spread_of(run, "(end_ns - start_ns) / 1e9", ended),
        first_token_s=spread_of(
            run, "(first_token_ns - start_ns) / 1e9", f"{ended} and first_token_ns >= start_ns"
        ),
        finishes=tuple((named(Finish, code), n) for code, n in rows),
        unended=run.ask(unended)[0][0],
        verdict_s=spread_of(run, "(end_ns - start_ns) / 1e9", f"{judged} and end_ns > start_ns"),
        verdicts_untimed=untimed,
        verdict_failures=failed,
        slots=slots(read_generated(run, steps)),
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
