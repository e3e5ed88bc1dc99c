"""The tail in words: how long trajectories take, and what draining costs."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.tail import Slots, Tail
from rltrace.report import units
from rltrace.report.layout import Section, numbers, table

_FULL = 0.95


def has_tail(tail: Tail) -> bool:
    """Whether there is anything to say."""
    rewards = tail.reward_latency_s.n or tail.untimed_rewards
    return bool(tail.latency_s.n or tail.unended or rewards)


def tail_section(tail: Tail) -> Section:
    rows = []
    for name, spread, show in (
        ("response tokens", tail.response_tokens, units.count),
        ("latency", tail.latency_s, units.seconds),
        ("to first token", tail.first_token_s, units.seconds),
        ("reward latency", tail.reward_latency_s, units.seconds),
    ):
        if spread.n:
            times = map(show, (spread.p50, spread.p95, spread.p99, spread.largest))
            rows.append((name, *times, units.ratio(spread.tail_ratio), units.count(spread.n)))
    columns = numbers("p50", "p95", "p99", ("max", 76), "p95/p50", ("n", 68))
    lines, notes = tuple(_draining(tail.slots)), tuple(_notes(tail))
    return Section("Tail", lines, table(rows, "trajectories", *columns), notes)


def _draining(slots: Slots | None) -> Iterator[str]:
    if slots is None or not slots.batches or slots.used_share.mean >= _FULL:
        return
    yield (
        f"{units.share(slots.used_share.mean)} of the engines' slots are in use. A batch takes "
        f"{units.seconds(slots.span_s.mean)}, its last 10 % "
        f"{units.seconds(slots.last_tenth_s.mean)} ({units.share(slots.last_tenth_share.mean)}). "
        f"With all slots in use it would take "
        f"{units.seconds(slots.no_idle_span_s)}."
    )


def _notes(tail: Tail) -> Iterator[str]:
    if known := [f"{word} {units.count(n)}" for word, n in tail.finishes if word != "unknown"]:
        yield f"Samples ended by {', '.join(known)}."
    if tail.unended:
        yield f"{units.plural(tail.unended, 'more sample')} began and never ended."
    if tail.untimed_rewards:
        yield f"{units.plural(tail.untimed_rewards, 'reward')} recorded without a duration."
    if tail.failed_rewards:
        yield f"{units.plural(tail.failed_rewards, 'reward')} timed out or failed."
