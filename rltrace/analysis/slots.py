"""How well the engines' slots are used: many trajectories in flight, and few while a batch drains.

Slots stand idle while a batch drains: its last trajectory has begun, and there is nothing to put
into those that fall free. What that costs is set by the waves of work for each slot and by the
longest trajectory, not by the tail alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.generated import Generated
from rltrace.analysis.intervals import Floats, Ints
from rltrace.analysis.stats.spread import Spread, spread

_LAST = 0.9
_PARTS = 20
_NOTHING = spread([])


@dataclass(frozen=True)
class Slots:
    """Of each batch: `slots` (the most in flight), `samples`, `waves` (samples for each slot),
    `span_s` (first begin to last end), `used_share` (in flight over slots, in the mean over the
    span), `draining_s` (from the last begin on) and what is used in it, and `last_tenth_s`: how
    long the last 10 % of the trajectories, at least one, took after the others had ended
    (`last_tenth_share` of the span). `draining_at_s` is the mean drain cut up by how many of the
    slots are used then, in equal parts from none to all, and `draining_used` the share that is used
    in the mean of each part.

    `perfect_s` is the span if the slots were never idle. Without batches (`batches` is 0) only
    `slots` and `used_share` are known, of the whole time.
    """

    batches: int
    slots: Spread
    samples: Spread = _NOTHING
    waves: Spread = _NOTHING
    span_s: Spread = _NOTHING
    used_share: Spread = _NOTHING
    draining_s: Spread = _NOTHING
    used_while_draining: Spread = _NOTHING
    draining_at_s: tuple[float, ...] = ()
    draining_used: tuple[float, ...] = ()
    last_tenth_s: Spread = _NOTHING
    last_tenth_share: Spread = _NOTHING
    perfect_s: float = math.nan


def slots(generated: Generated) -> Slots | None:
    """The use of slots; None where no trajectory has a length."""
    if not len(generated) or not (generated.end_ns > generated.start_ns).any():
        return None
    if not generated.in_batches:
        most, mean = _in_flight(generated.start_ns, generated.end_ns)
        return Slots(0, spread([float(most)]), used_share=spread([mean / most]))
    rows = np.array([_batch(generated, places) for places in generated.batches()])
    most, n, span_s, work_s, draining_s, in_drain_s, last_s = rows.T
    with np.errstate(all="ignore"):
        used = work_s / (most * span_s)
        in_drain = np.where(draining_s > 0, in_drain_s / (most * draining_s), np.nan)
        last_share = last_s / span_s
    draining_s_at, used_at = _draining_at(generated)
    return Slots(
        batches=len(rows),
        slots=spread(most),
        samples=spread(n),
        waves=spread(n / most),
        span_s=spread(span_s),
        used_share=spread(used),
        draining_s=spread(draining_s),
        used_while_draining=spread(in_drain),
        draining_at_s=tuple(draining_s_at.tolist()),
        draining_used=tuple(used_at.tolist()),
        last_tenth_s=spread(last_s),
        last_tenth_share=spread(last_share),
        perfect_s=float((work_s / most).mean()),
    )


def _batch(generated: Generated, places: Ints) -> tuple[float, ...]:
    start, end = generated.start_ns[places], generated.end_ns[places]
    most, _ = _in_flight(start, end)
    drain = int(start.max())
    ends = np.sort(end)
    # At least one is the last 10 %: of eight the slowest is, and a lone one is all there is.
    earlier = min(len(ends) - 1, int(np.ceil(_LAST * len(ends))))
    ninth = int(ends[earlier - 1]) if earlier else int(start.min())
    return (
        float(most),
        float(len(places)),
        (int(ends[-1]) - int(start.min())) / 1e9,
        float((end - start).sum()) / 1e9,
        (int(ends[-1]) - drain) / 1e9,
        float(np.maximum(end - drain, 0).sum()) / 1e9,
        (int(ends[-1]) - ninth) / 1e9,
    )


def _draining_at(generated: Generated) -> tuple[Floats, Floats]:
    batches = generated.batches()
    seconds, used_s = np.zeros(_PARTS), np.zeros(_PARTS)
    for places in batches:
        start, end = generated.start_ns[places], generated.end_ns[places]
        most, _ = _in_flight(start, end)
        ends = np.concatenate([[start.max()], np.sort(end[end > start.max()])])
        running = np.arange(len(ends) - 1, 0, -1)
        part, length_s = (running * _PARTS - 1) // most, np.diff(ends) / 1e9
        seconds += np.bincount(part, length_s, _PARTS)
        used_s += np.bincount(part, length_s * running / most, _PARTS)
    return seconds / len(batches), used_s / np.where(seconds > 0, seconds, 1)


def _in_flight(start: Ints, end: Ints) -> tuple[int, float]:
    """`(the most in flight, the mean over the time from first begin to last end)`."""
    times = np.concatenate([end, start])  # at one moment, first what ends
    change = np.concatenate([np.full(len(end), -1), np.ones(len(start), np.int64)])
    order = np.argsort(times, kind="stable")
    most = max(1, int(np.cumsum(change[order]).max()))
    span = int(end.max() - start.min())
    return most, float((end - start).sum()) / span if span else float(most)
