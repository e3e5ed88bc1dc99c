"""The tail in words: how long trajectories take, why the slowest do, and what draining costs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rltrace.analysis.slots import Slots
from rltrace.analysis.tail import DECODING, Lengths, Tail, TailCauses
from rltrace.report import units
from rltrace.report.layout import Column, Grid, Section, listed, numbers

_SMALL = 0.05
_FULL = 0.95
_MOST_CAUSES = 3
_SHORTER = {DECODING: "faster decoding"}


def has_tail(tail: Tail) -> bool:
    """Whether there is anything to say."""
    verdicts = tail.verdict_s.n or tail.verdicts_untimed
    return bool(tail.latency_s.n or tail.unended or verdicts)


def tail_section(tail: Tail) -> Section:
    rows = []
    for name, spread, show in (
        ("response tokens", tail.response_tokens, units.count),
        ("latency", tail.latency_s, units.seconds),
        ("to first token", tail.first_token_s, units.seconds),
        ("verdict latency", tail.verdict_s, units.seconds),
    ):
        if spread.n:
            times = map(show, (spread.p50, spread.p95, spread.p99, spread.largest))
            rows.append((name, *times, units.ratio(spread.tail_ratio), units.count(spread.n)))
    columns = (
        Column("trajectories"),
        *numbers("p50", "p95", "p99"),
        Column("max", right=True, least_width=76),
        Column("p95/p50", right=True),
        Column("n", right=True, least_width=68),
    )
    lines = (*_causes(tail.causes), *_draining(tail.slots))
    grid = Grid(columns, tuple(rows)) if rows else None
    return Section("Tail", lines, grid, tuple(_notes(tail)))


def _causes(causes: TailCauses | None) -> Iterator[str]:
    if causes is None:
        return
    longer = [cause for cause in causes.causes if cause.share >= _SMALL]
    shorter = [cause for cause in causes.causes if cause.share <= -_SMALL]
    why = [f"{one.name} {units.seconds(one.seconds)}" for one in longer[:_MOST_CAUSES]]
    line = (
        f"The slowest 5 % take {units.seconds(causes.gap_s)} longer than usual ones "
        f"({units.seconds(causes.slowest_s)} against {units.seconds(causes.usual_s)}): "
        f"{listed(why)}"
    )
    less = [
        f"{_SHORTER.get(one.name, one.name)} {units.seconds(-one.seconds)}"
        for one in reversed(shorter)
    ]
    yield f"{line}{f'; less by {listed(less[:_MOST_CAUSES])}' if less else ''}."
    marks = [
        f"{mark.name} {units.share(mark.of_slowest)} (usual ones {units.share(mark.of_usual)})"
        for mark in causes.marks
        if mark.of_slowest >= _SMALL and not mark.of_slowest <= mark.of_usual
    ]
    if marks:
        yield f"Of the slowest: {', '.join(marks)}."


def _draining(slots: Slots | None) -> Iterator[str]:
    if slots is None or not slots.batches or slots.used_share.mean >= _FULL:
        return
    yield (
        f"Slots are used to {units.share(slots.used_share.mean)}: the last 10 % of a batch take "
        f"{units.seconds(slots.last_tenth_s.mean)} of its {units.seconds(slots.span_s.mean)} "
        f"({units.share(slots.last_tenth_share.mean)}); never idle, it would take "
        f"{units.seconds(slots.perfect_s)}."
    )


def _notes(tail: Tail) -> Iterator[str]:
    yield from _lengths(tail.lengths)
    if known := [f"{word} {units.count(n)}" for word, n in tail.finishes if word != "unknown"]:
        yield f"ended by {', '.join(known)}."
    if tail.unended:
        yield f"{units.count(tail.unended)} more began and never ended."
    if tail.verdicts_untimed:
        verdicts = units.plural(tail.verdicts_untimed, "verdict")
        yield f"{verdicts} recorded without a duration."
    if tail.verdict_failures:
        yield f"{units.plural(tail.verdict_failures, 'verdict')} timed out or failed."
    if tail.causes is not None and tail.causes.unknown:
        yield f"Not recorded, hence within the other causes: {listed(tail.causes.unknown)}."


def _lengths(lengths: Lengths | None) -> Iterator[str]:
    if lengths is None or math.isnan(lengths.within_group):
        return
    line = f"Lengths: log-deviation {units.number(lengths.within_group)} within a group"
    if not math.isnan(lengths.between_groups):
        line += f", {units.number(lengths.between_groups)} between groups"
    if lengths.group_size > 1:
        line += (
            f"; the longest of a group is {units.ratio(lengths.longest_in_groups)} the mean "
            f"(of {lengths.group_size} drawn at random {units.ratio(lengths.longest_of_group)})"
        )
    if lengths.batch_size > 1:
        longest = units.ratio(lengths.longest_of_batch)
        line += f", that of a batch of {lengths.batch_size} is expected at {longest}"
    if not math.isnan(lengths.s):
        line += f"; p95/p50 as of a lognormal with c = {units.number(lengths.c)}"
    yield f"{line}."
