"""How fast the engines of a run decode, and how many samples a worker has room for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rltrace.analysis.intervals import Floats, Ints
from rltrace.analysis.lanes import levels, usual_most
from rltrace.analysis.whatif.workload import Engine
from rltrace.trace.query_columns import alike, numbered

_VARIES = 0.05  # of the running sequences, below which their part of the pace cannot be told
_WAVES = 0.1  # part of a batch that begins late, from which on it comes in waves
_SAME = 0.05
_STEADY, _MOSTLY = 0.25, 0.6  # near the mean, for this part of the time
_TOOLS = 0.1  # part of the samples' time in tools, below which it matters little who has a place


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences that ended: engine (0, 1, ...), batch, seconds at which decoding began and ended,
    tokens, seconds of tools in between."""

    worker: Ints
    batch: Ints
    begin_s: Floats
    end_s: Floats
    tokens: Floats
    env_s: Floats


class Fit(NamedTuple):
    """The engine, what cannot be told of it, and whether it is known who has a place."""

    engine: Engine
    notes: tuple[str, ...]
    sure: bool


def fit_engine(sequences: Sequences, stream: bool = False) -> Fit:
    """The engine that these sequences ran on. `stream`: they did not come in batches.

    Their times are regressed on their tokens and on tokens times the mean number that ran beside
    them. There is a limit of slots where some began only as others ended (`places_of`; tools then
    keep their places), or where as many ran as ever while others of their batch waited.
    """
    beside = np.ones(len(sequences.tokens))
    full: list[float] = []
    for _, mine in alike(sequences.worker):
        beside[mine], some = _running(sequences, mine)
        full += some
    tools_s = float(sequences.env_s.sum())
    spent = np.maximum(0.0, sequences.end_s - sequences.begin_s - sequences.env_s)
    lone, shared, told = _pace(sequences.tokens, beside, spent)
    notes: tuple[str, ...] = ()
    if not told:
        notes = ("the number of running sequences never varied: decoding is taken not to depend"
                 " on it",)  # fmt: skip
    when = sequences.worker, sequences.begin_s, sequences.end_s
    slots, sure = places_of(*when)
    if not sure and not tools_s:
        slots = math.inf
    keeps = tools_s > 0 and math.isfinite(slots)
    most = float(max(levels(b, e)[1].max() for b, e in _by_worker(*when)))
    # One had several sequences of most batches to run.
    several = np.median(np.bincount(numbered(sequences.worker, sequences.batch)[0])) > 1
    if math.isinf(slots) and most == 1 and several:
        slots, keeps = 1.0, tools_s > 0
        notes += (
            "no two sequences of a worker ever ran at once: it is taken to run one at a time",
        )
    elif math.isinf(slots) and full and np.std(full) < _SAME * np.mean(full):
        slots = max(1.0, float(np.median(full)))  # a limit is the same in every batch
    elif keeps:
        notes += (
            f"a worker has {slots:g} at once, whose tools keep their places: it begins another one "
            "only as one of them ends",
        )
    return Fit(
        Engine(
            float(int(sequences.worker.max()) + 1), slots, lone, shared,
            tools_hold=keeps,
            seen_at_once=most if stream and math.isinf(slots) else np.inf,
        ),
        notes,
        sure or tools_s < _TOOLS * (float(spent.sum()) + tools_s),
    )  # fmt: skip


def _running(sequences: Sequences, mine: Ints) -> tuple[Floats, list[float]]:
    """How many sequences ran in the mean while each of these decoded, and how many did while others
    of their batch waited for a place: a figure for each batch that came in waves. A tool answers
    halfway, as in a replay, and its sequence does not run meanwhile."""
    begin, end = sequences.begin_s[mine], sequences.end_s[mine]
    half = np.maximum(end - begin - sequences.env_s[mine], 1e-9) / 2
    called, answered = begin + half, end - half
    times = np.concatenate([begin, answered, called, end])
    order = np.argsort(times, kind="stable")
    count = np.cumsum(np.repeat([1.0, -1.0], 2 * len(begin))[order])
    at = times[order]
    area = np.concatenate([[0.0], np.cumsum(count[:-1] * np.diff(at))])

    def until(moments: Floats) -> Floats:
        return np.asarray(np.interp(moments, at, area), np.float64)

    full = []
    for of_batch in _in_waves(sequences.batch[mine], begin, end):
        opened = begin[of_batch]
        first, last = np.searchsorted(at, opened.min()), np.searchsorted(at, opened.max(), "right")
        span, running = np.diff(at[first:last]), count[first : last - 1]
        if not span.sum() > 0:
            continue
        usual = float(running @ span / span.sum())
        steady = np.abs(running - usual) <= _STEADY * usual
        if span[steady].sum() > _MOSTLY * span.sum():  # a limit, and no stream that comes and goes
            full.append(usual)
    ran = until(called) - until(begin) + until(end) - until(answered)
    return np.maximum(1.0, ran / (2 * half)), full


def _in_waves(batch: Ints, begin_s: Floats, end_s: Floats) -> list[Ints]:
    """The rows of each batch of which some began when others had ended."""
    number, first = numbered(batch)
    first_end_s = np.full(len(first), np.inf)
    np.minimum.at(first_end_s, number, end_s)
    late = np.bincount(number, weights=begin_s > first_end_s[number])
    rows = np.flatnonzero((late > _WAVES * np.bincount(number))[number])
    return [rows[part] for _, part in alike(number[rows])]


def _pace(tokens: Floats, beside: Floats, spent: Floats) -> tuple[float, float, bool]:
    """Seconds a token alone and for each sequence beside it, neither negative; and whether the two
    could be told apart."""
    together = tokens * beside
    total = float(tokens @ tokens)
    mean = float(tokens @ spent) / total if total else 0.0
    if beside.std() < _VARIES * beside.mean():
        return mean, 0.0, False
    columns = np.stack([tokens, together], axis=1)
    (lone, shared), *_ = np.linalg.lstsq(columns, spent, rcond=None)
    if shared < 0:
        return mean, 0.0, True
    if lone < 0:
        return 0.0, float(together @ spent) / float(together @ together), True
    return float(lone), float(shared), True


# --- places: how many samples a worker may have on their way at once, those in their tools too
#
# Where a sample keeps its place until it ends another one begins as soon as one has ended, and only
# where the worker had as many on their way as it ever has. Where it gives its place away while its
# tool works others begin meanwhile, too, and how many are on their way goes up and down; where
# nothing limits them they begin together.

_AT_ONCE = 0.05  # of a sample's time over the root of the places, in which the next one begins
_FOLLOWED = 0.05  # part of the ends that another sample follows at once; fewer tell nothing
_LEAST = 8
_FULL, _LIMITED = 0.8, 0.35  # part of those at which the worker was full: there is a limit; none


class Places(NamedTuple):
    """Samples on their way at once at a worker, at the most; infinite where no limit was seen.
    `sure`: whether the run tells."""

    limit: float
    sure: bool


def places_of(worker: Ints, begin_s: Floats, end_s: Floats) -> Places:
    """The places of workers (0, 1, ...) whose samples began and ended at these times."""
    found = [_followed_at(*times) for times in _by_worker(worker, begin_s, end_s)]
    limits, ends, followed, full = np.array(found).T
    least = max(_LEAST, _FOLLOWED * ends.sum())
    if followed.sum() < least or full.sum() < _LIMITED * followed.sum():
        return Places(np.inf, True)
    return Places(float(np.median(limits)), bool(full.sum() >= _FULL * followed.sum()))


def _followed_at(begin_s: Floats, end_s: Floats) -> tuple[int, int, int, int]:
    """The most that are on their way for more than a rare moment; how many ended, how many of those
    another one followed at once, and at how many of these as many as that had been on their way."""
    begins, ends = np.sort(begin_s), np.sort(end_s)
    times, level = levels(begins, ends)
    limit, _ = usual_most(times, level)
    soon_s = _AT_ONCE * float(np.median(end_s - begin_s)) / max(1, limit) ** 0.5
    next_one = np.searchsorted(begins, ends + soon_s, "right")
    followed = ends[next_one > np.searchsorted(begins, ends, "left")]
    was_full = np.concatenate([[0], np.cumsum(level >= limit)])
    since = np.maximum(0, np.searchsorted(times, followed - soon_s, "left") - 1)
    full = was_full[np.searchsorted(times, followed, "left")] > was_full[since]
    return limit, len(ends), len(followed), int(full.sum())


def _by_worker(worker: Ints, begin_s: Floats, end_s: Floats) -> list[tuple[Floats, Floats]]:
    return [(begin_s[mine], end_s[mine]) for _, mine in alike(worker)]
