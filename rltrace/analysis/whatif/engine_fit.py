"""How fast the engines of a run decode, from when each of its sequences began and ended."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.columns import alike, numbered
from rltrace.analysis.intervals import Ints, by_number
from rltrace.analysis.order_statistics import Floats
from rltrace.analysis.whatif.places import most_at_once, places_of, room_of
from rltrace.analysis.whatif.workload import Engine

_VARIES = 0.05  # of the running sequences, below which their part of the pace cannot be told
_WAVES = 0.1  # part of a batch that begins late, from which on it comes in waves
_SAME = 0.05
_TOOLS = 0.1  # part of the samples' time in tools, below which it matters little who has a place
_STEADY, _MOSTLY = 0.25, 0.6  # near the mean, for this part of the time


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


def fit_engine(sequences: Sequences, stream: bool = False) -> tuple[Engine, tuple[str, ...]]:
    """The engine that these sequences ran on, and what cannot be told of it. `stream`: they did not
    come in batches.

    Their times are regressed on their tokens and on tokens times the mean number that ran beside
    them. There is a limit of slots where some began only once others had ended; tools hold slots
    where that is so of all that were on their way, and not only of those that ran (`places_of`). In
    a stream whose samples wait for others than the engine, none began while as many ran as ever
    (`room_of`).
    """
    workers = int(sequences.worker.max()) + 1
    beside = np.ones(len(sequences.tokens))
    full: list[float] = []
    for _, mine in alike(sequences.worker):
        beside[mine], some = _running(sequences, mine)
        full += some
    spent = np.maximum(0.0, sequences.end_s - sequences.begin_s - sequences.env_s)
    lone, shared, told = _pace(sequences.tokens, beside, spent)
    notes: tuple[str, ...] = ()
    if not told:
        notes = ("the number of running sequences never varied: decoding is taken not to depend"
                 " on it",)  # fmt: skip
    slots, tools_hold, sure = np.inf, False, True
    tools = bool(sequences.env_s.any())
    if tools:
        places = places_of(sequences.worker, sequences.begin_s, sequences.end_s)
        tools_hold = math.isfinite(places.limit)
        sure = places.sure or sequences.env_s.sum() < _TOOLS * (spent.sum() + sequences.env_s.sum())
    if tools_hold:
        slots = places.limit
        notes += (
            f"a worker has {slots:g} at once, whose tools keep their places: it begins another one "
            "only as one of them ends",
        )
    elif full and np.std(full) < _SAME * np.mean(full):  # a limit is the same in every batch
        slots = max(1.0, float(np.median(full)))
    elif _one_by_one(sequences):
        slots, tools_hold = 1.0, tools
        notes += (
            "no two sequences of a worker ever ran at once: it is taken to run one at a time",
        )
    elif stream and not tools:
        slots = room_of(sequences.worker, sequences.begin_s, sequences.end_s)
    seen = np.inf
    if stream and math.isinf(slots):
        seen = most_at_once(sequences.worker, sequences.begin_s, sequences.end_s)
    engine = Engine(
        float(workers), slots, lone, shared, tools_hold=tools_hold, sure=sure, seen_at_once=seen
    )
    return engine, notes


def _one_by_one(sequences: Sequences) -> bool:
    """Whether each worker ended a sequence, with its tools, before it began another, though it had
    several of most batches to run."""
    order = np.argsort(sequences.begin_s, kind="stable")
    order = order[by_number(sequences.worker[order])]
    worker, begin, end = (
        column[order] for column in (sequences.worker, sequences.begin_s, sequences.end_s)
    )
    same = worker[1:] == worker[:-1]
    if (same & (begin[1:] < end[:-1])).any():
        return False
    count = np.bincount(numbered(sequences.worker, sequences.batch)[0])
    return bool(np.median(count) > 1)


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
        inside = slice(first, last - 1)
        span, running = np.diff(at[first:last]), count[inside]
        if not span.sum() > 0:
            continue
        usual = float(running @ span / span.sum())
        steady = np.abs(running - usual) <= _STEADY * usual
        if span[steady].sum() > _MOSTLY * span.sum():  # a limit, and no stream that comes and goes
            full.append(usual)
    ran = until(called) - until(begin) + until(end) - until(answered)
    return np.maximum(1.0, ran / (2 * half)), full


def _in_waves(batch: Ints, begin_s: Floats, end_s: Floats) -> list[Ints]:
    """The rows of each batch of which some began when others had ended. A long run has many batches
    of few rows each: they are looked at all at once, and those alone are taken one by one."""
    number, first = numbered(batch)
    first_end_s = np.full(len(first), np.inf)
    np.minimum.at(first_end_s, number, end_s)
    late = np.bincount(number, weights=begin_s > first_end_s[number])
    waves = late > _WAVES * np.bincount(number)
    rows = np.flatnonzero(waves[number])
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
