"""How long responses take, and slots of engines that idle meanwhile.

A batch is what is generated from one moment at which nothing is in flight to the next. Slots stand
idle while it drains: its last trajectory has begun, and there is nothing for those that fall free.
What that costs is set by the waves of work for each slot and by the longest trajectory, not by the
tail alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rltrace.analysis.stats.confidence_interval import Spread, spread, spread_of
from rltrace.analysis.timeline.interval_lookup import columns, levels
from rltrace.analysis.timeline.intervals import Floats, Ints
from rltrace.analysis.timeline.steps import Steps
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Finish, named

_SQL = packaged_toml("analysis/data/sample_queries.toml")
_LAST = 0.9
_PARTS = 20
_NOTHING = spread([])


@dataclass(frozen=True)
class SlotUse:
    """Of each batch: `slots` (the most in flight), `samples`, `waves` (samples for each slot),
    `span_s` (first begin to last end; `no_idle_span_s` if the slots were never idle), `used_share`
    (in flight over slots, in the mean over the span), `draining_s` (from the last begin on) and
    what is used in it, and `last_tenth_s`: how long the last 10 % of the trajectories, at least
    one, took after the others had ended (`last_tenth_share` of the span). Means of shares are of
    all batches' time together. `draining_at_s` is the mean drain cut up by how many of the slots
    are used then, in equal parts from none to all, `draining_used_shares` the mean share used in
    each part. Where generation never stops there are 0 `batches`, and only `slots` and `used_share`
    are known, of the whole time."""

    batches: int
    slots: Spread
    samples: Spread = _NOTHING
    waves: Spread = _NOTHING
    span_s: Spread = _NOTHING
    used_share: Spread = _NOTHING
    draining_s: Spread = _NOTHING
    draining_used_share: Spread = _NOTHING
    draining_at_s: tuple[float, ...] = ()
    draining_used_shares: tuple[float, ...] = ()
    last_tenth_s: Spread = _NOTHING
    last_tenth_share: Spread = _NOTHING
    no_idle_span_s: float = math.nan


@dataclass(frozen=True)
class Tail:
    """The trajectories that ended within the steady steps. `finishes` counts how they ended;
    `unended` of the whole run did not. `reward_latency_s` is of the verdicts whose duration was
    recorded, `untimed_rewards` are the others; `failed_rewards` of both failed."""

    response_tokens: Spread
    latency_s: Spread
    first_token_s: Spread
    finishes: tuple[tuple[str, int], ...]
    unended: int
    reward_latency_s: Spread
    untimed_rewards: int
    failed_rewards: int
    slots: SlotUse | None


def tail(run: OpenedRun, steps: Steps) -> Tail:
    within = _ended_within(steps)
    ended, judged = f"raw_trajectories where {within}", f"raw_rewards where {within}"
    rows = run.ask(f"select finish, count(*) from {ended} group by finish order by 2 desc")
    unended = "select count(*) from raw_trajectories where start_ns > 0 and end_ns < 0"
    counts = "count(*) filter (end_ns = start_ns), count(*) filter (outcome > 0)"
    untimed, failed = run.ask(f"select {counts} from {judged}")[0]
    tokens, latency, verdicts = (spread_of(run, *asked) for *_, asked in _asked(steps))
    return Tail(
        response_tokens=tokens,
        latency_s=latency,
        first_token_s=spread_of(
            run, "(first_token_ns - start_ns) / 1e9", f"{ended} and first_token_ns >= start_ns"
        ),
        finishes=tuple((named(Finish, code), n) for code, n in rows),
        unended=run.ask(unended)[0][0],
        reward_latency_s=verdicts,
        untimed_rewards=untimed,
        failed_rewards=failed,
        slots=_slots(run, steps),
    )


def _asked(steps: Steps) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """What trajectories took: names, units, and the SQL of the values with where they are."""
    within, latency = _ended_within(steps), "(end_ns - start_ns) / 1e9"
    ended = f"raw_trajectories where {within}"
    yield "response tokens", "tokens", ("response_tokens", f"{ended} and response_tokens >= 0")
    yield "latency", "s", (latency, ended)
    judged = f"raw_rewards where {within} and end_ns > start_ns"
    yield "reward latency", "s", (latency, judged)


def _ended_within(steps: Steps) -> str:
    """The SQL condition that a row ended within the steady steps."""
    since, until = steps.steady_ns
    return f"start_ns > 0 and end_ns >= start_ns and end_ns >= {since} and end_ns < {until}"


def _slots(run: OpenedRun, steps: Steps) -> SlotUse | None:
    """None where nothing that ended within the steady steps has a length."""
    start, end = _ended(run, steps)
    if not (end > start).any():
        return None
    reached = np.maximum.accumulate(end)
    begins = np.flatnonzero(np.append(True, start[1:] >= reached[:-1])).tolist()
    if len(begins) < 1 + (len(steps.steady) > 1):  # where nothing stops in several steps
        most, _, whole_s, worked_s, *_ = _figures(start, end)
        return SlotUse(0, spread([most]), used_share=spread([worked_s / (most * whole_s)]))
    parts = [slice(*part) for part in pairwise([*begins, len(start)])]
    batches = [(start[part], end[part]) for part in parts]
    most, n, span_s, work_s, draining_s, in_drain_s, last_s = np.array(
        [_figures(*batch) for batch in batches]
    ).T
    with np.errstate(all="ignore"):
        used = work_s / (most * span_s)
        in_drain = np.where(draining_s > 0, in_drain_s / (most * draining_s), np.nan)
        last_share = last_s / span_s
    drains = [_draining_at(*batch, int(one)) for batch, one in zip(batches, most, strict=True)]
    at_s, used_s = np.sum(drains, axis=0)
    return SlotUse(
        batches=len(batches),
        slots=spread(most),
        samples=spread(n),
        waves=spread(n / most),
        span_s=spread(span_s),
        used_share=spread(used, span_s),
        draining_s=spread(draining_s),
        draining_used_share=spread(in_drain, draining_s),
        draining_at_s=tuple((at_s / len(batches)).tolist()),
        draining_used_shares=tuple((used_s / np.where(at_s > 0, at_s, 1)).tolist()),
        last_tenth_s=spread(last_s),
        last_tenth_share=spread(last_share, span_s),
        no_idle_span_s=float((work_s / most).mean()),
    )


def _ended(run: OpenedRun, steps: Steps) -> tuple[Ints, Ints]:
    """In order; one that several processes recorded lasts from its first row to its last."""
    start, end = columns(run, _SQL["extents"].format(within=_ended_within(steps)))
    order = np.lexsort((end, start))
    return start[order], end[order]


def _figures(start: Ints, end: Ints) -> tuple[float, ...]:
    drain, ends = int(start.max()), np.sort(end)
    # At least one is the last 10 %: of eight the slowest is, and a lone one is all there is.
    earlier = min(len(ends) - 1, int(np.ceil(_LAST * len(ends))))
    ninth = int(ends[earlier - 1]) if earlier else int(start[0])
    return (
        float(max(1, levels(start, end)[1].max())),
        float(len(ends)),
        (int(ends[-1]) - int(start[0])) / 1e9,
        float((end - start).sum()) / 1e9,
        (int(ends[-1]) - drain) / 1e9,
        float(np.maximum(end - drain, 0).sum()) / 1e9,
        (int(ends[-1]) - ninth) / 1e9,
    )


def _draining_at(start: Ints, end: Ints, most: int) -> Floats:
    """Seconds of the drain by the part of the slots that is used, and of that use."""
    drain = int(start.max())
    ends = np.concatenate([[drain], np.sort(end[end > drain])])
    running = np.arange(len(ends) - 1, 0, -1)
    part, length_s = (running * _PARTS - 1) // most, np.diff(ends) / 1e9
    return np.stack([np.bincount(part, s, _PARTS) for s in (length_s, length_s * running / most)])


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


def distributions(run: OpenedRun, steps: Steps) -> tuple[Distribution, ...]:
    asked = f"select count(x), quantile_cont(x, {list(SHARES)}) from"
    found = [
        (name, unit, *run.ask(f"{asked} (select ({expression})::double as x from {source})")[0])
        for name, unit, (expression, source) in _asked(steps)
    ]
    return tuple(Distribution(name, unit, n, tuple(values)) for name, unit, n, values in found if n)
