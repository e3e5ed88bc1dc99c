"""Whole distributions of what trajectories took, of the same ones that `tail` sums up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.analysis.steps import Steps

if TYPE_CHECKING:
    from rltrace.trace.run import Run

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
