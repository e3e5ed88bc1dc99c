"""How fast the engines of a run decode, and how many samples a worker has room for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rltrace.analysis.columns import alike, columns, numbered
from rltrace.analysis.intervals import Ints
from rltrace.analysis.lanes import levels, usual_most
from rltrace.analysis.order_statistics import Floats
from rltrace.analysis.whatif.workload import Engine
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run

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
    when = sequences.worker, sequences.begin_s, sequences.end_s
    tools = bool(sequences.env_s.any())
    if tools:
        places = places_of(*when)
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
    elif (
        most_at_once(*when) == 1
        # It had several sequences of most batches to run.
        and np.median(np.bincount(numbered(sequences.worker, sequences.batch)[0])) > 1
    ):
        slots, tools_hold = 1.0, tools
        notes += (
            "no two sequences of a worker ever ran at once: it is taken to run one at a time",
        )
    elif stream and not tools:
        slots = room_of(*when)
    seen = most_at_once(*when) if stream and math.isinf(slots) else np.inf
    return Engine(
        float(workers), slots, lone, shared, tools_hold=tools_hold, sure=sure, seen_at_once=seen
    ), notes


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


# --- places: how many samples a worker may have on their way at once, those in their tools too
#
# Where a sample keeps its place while its tool works another one begins as soon as one has ended,
# and only where the worker had as many on their way as it ever has. Where it gives its place away
# others begin as it calls its tool, too, and how many are on their way goes up and down; where
# nothing limits them they begin together. Where samples come in a stream, one after the other and
# not in batches, some would begin while a worker has as many as ever, if it had room for more.

_AT_ONCE = 0.05  # of a sample's time over the root of the places, in which the next one begins
_FOLLOWED = 0.05  # part of the ends that another sample follows at once; fewer tell nothing
_LEAST = 8
_FULL, _LIMITED = 0.8, 0.35  # part of those at which the worker was full: there is a limit; none
_ALONE = 0.5  # part of the samples of a stream that begin at a time of their own
_BEYOND = 0.1  # of those that would have begun with as many on their way, if there were no limit


class Places(NamedTuple):
    """Samples on their way at once at a worker, at the most; infinite where no limit was seen.
    `sure`: whether the run tells."""

    limit: float
    sure: bool


def places_of(worker: Ints, begin_s: Floats, end_s: Floats) -> Places:
    """The places of workers (0, 1, ...) whose samples began and ended at these times."""
    found = [_followed_at(begin_s[mine], end_s[mine]) for _, mine in alike(worker)]
    limits, ends, followed, full = np.array(found).T
    least = max(_LEAST, _FOLLOWED * ends.sum())
    if followed.sum() < least or full.sum() < _LIMITED * followed.sum():
        return Places(np.inf, True)
    return Places(float(np.median(limits)), bool(full.sum() >= _FULL * followed.sum()))


def room_of(worker: Ints, begin_s: Floats, end_s: Floats) -> float:
    """Samples of a stream that a worker has room for; infinite where no limit was seen, be it as
    none had as many as ever for long enough, or as samples begin together."""
    found = [_room(np.sort(begin_s[mine]), np.sort(end_s[mine])) for _, mine in alike(worker)]
    limits, alone, expected, beyond = np.array(found).T
    if alone.sum() < _ALONE * len(worker) or expected.sum() < _LEAST:
        return np.inf
    if beyond.sum() > _BEYOND * expected.sum():
        return np.inf
    return float(np.median(limits))


def most_at_once(worker: Ints, begin_s: Floats, end_s: Floats) -> float:
    """The most samples that a worker ever had on their way."""
    return float(max(levels(begin_s[mine], end_s[mine])[1].max() for _, mine in alike(worker)))


def _room(begins: Floats, ends: Floats) -> tuple[float, float, float, float]:
    """The most that are on their way for more than a rare moment; how many begin at a time of their
    own, and not together, as after an update; how many of these would have begun with as many on
    their way if they did at any time, and how many did."""
    times, level = levels(begins, ends)
    limit, held_s = usual_most(times, level)
    soon_s = _soon_s(float(np.mean(ends) - np.mean(begins)), limit)
    firsts = begins[np.diff(begins, prepend=-np.inf) > soon_s]
    before = np.searchsorted(begins, firsts, "left") - np.searchsorted(ends, firsts, "right")
    expected = len(firsts) * held_s / float(times[-1] - times[0])
    return float(limit), float(len(firsts)), expected, float((before >= limit).sum())


def _soon_s(usual_s: float, limit: int) -> float:
    return _AT_ONCE * usual_s / float(max(1, limit) ** 0.5)


def _followed_at(begin_s: Floats, end_s: Floats) -> tuple[int, int, int, int]:
    """The most that are on their way for more than a rare moment; how many ended, how many of those
    another one followed at once, and at how many of these as many as that had been on their way."""
    begins, ends = np.sort(begin_s), np.sort(end_s)
    times, level = levels(begins, ends)
    limit, _ = usual_most(times, level)
    soon_s = _soon_s(float(np.median(end_s - begin_s)), limit)
    next_one = np.searchsorted(begins, ends + soon_s, "right")
    followed = ends[next_one > np.searchsorted(begins, ends, "left")]
    was_full = np.concatenate([[0], np.cumsum(level >= limit)])
    since = np.maximum(0, np.searchsorted(times, followed - soon_s, "left") - 1)
    full = was_full[np.searchsorted(times, followed, "left")] > was_full[since]
    return limit, len(ends), len(followed), int(full.sum())


# --- samples whose turns were recorded one by one: what waits within a sample's own time
#
# A sample may begin before it has a place at an engine, and wait for one again after each tool. Its
# own time does not tell that; spans of its turns do. As many turns as ever run for as long as
# others wait where the engine has so many places, and a tool keeps its sample's place where turns
# and tools together are never more than that.

_SEVERAL = 1.5  # turns for each sample
_WAITED = 1.2  # times its turns that a sample's own time is; less is no line
_LEAST_FULL = 0.5  # of the time in which samples wait, places are taken


def of_turns(
    engine: Engine, run: Run, since_ns: int, until_ns: int
) -> tuple[Engine, tuple[str, ...]] | None:
    """The engine as the turns of samples between two moments (ns) tell it, and a sentence on it;
    None where they were not recorded one by one, or samples wait for nothing within their own
    time."""
    inside = f"start_ns >= {since_ns} and end_ns < {until_ns} and end_ns > start_ns"
    process, begin, end, env, tokens = columns(
        run,
        "select process, start_ns, end_ns, greatest(env_ns, 0), greatest(response_tokens, 0) "
        f"from raw_trajectories where {inside}",
    )
    worker, stage, *times = columns(
        run,
        f"select process, stage, start_ns, end_ns from raw_spans where {inside} "
        f"and stage in ({int(Stage.ROLLOUT)}, {int(Stage.ENV)}) "
        "and process in (select process from raw_trajectories)",
    )
    is_turn = stage == Stage.ROLLOUT
    if not tokens.sum() or is_turn.sum() < _SEVERAL * len(begin):
        return None
    worked_ns = float((times[1] - times[0])[is_turn].sum())
    if float((end - begin - env).sum()) < _WAITED * worked_ns:
        return None
    samples, spans, spans_of = np.stack([begin, end]), np.stack(times), dict(alike(worker))
    found = []
    for one, mine in alike(process):
        theirs = spans_of.get(one, mine[:0])
        in_turn = is_turn[theirs]
        found.append(
            _turns_at_once(samples[:, mine], spans[:, theirs[in_turn]], spans[:, theirs[~in_turn]])
        )
    places, hold, full = (np.array(column) for column in zip(*found, strict=True))
    all_tokens, slots = float(tokens.sum()), float(np.median(places))
    kept = "keep their places while their tools work" if hold.all() else "leave them to others"
    return replace(
        engine, token_s=worked_ns / 1e9 / all_tokens, shared_token_s=0.0, slots=slots,
        tools_hold=bool(hold.all()), turn_tokens=all_tokens / float(is_turn.sum()),
        sure=bool(full.min() >= _LEAST_FULL and (hold.all() or not hold.any())),
    ), (f"a worker runs {slots:g} turns at once; samples wait for one, and {kept}",)  # fmt: skip


def _turns_at_once(samples: Ints, turns: Ints, tools: Ints) -> tuple[float, bool, float]:
    """The places of a worker, whether tools keep them, and for what part of the time in which
    samples wait all are taken. Arguments are begins and ends, in ns."""
    at_work = np.concatenate([turns, tools], axis=1)
    running, busy = (usual_most(*levels(*one))[0] for one in (turns, at_work))
    hold = bool(tools.size) and busy <= running
    times = np.unique(np.concatenate([samples, at_work], axis=1))
    length, times = np.diff(times), times[:-1]
    waits = _level(samples, times) > _level(at_work, times)
    taken = _level(at_work if hold else turns, times) >= running
    waited = float(length[waits].sum())
    full = float(length[waits & taken].sum()) / waited if waited else 0.0
    return float(running), hold, full


def _level(intervals: Ints, moments: Ints) -> Ints:
    """How many of the intervals are under way from each moment on."""
    begun, ended = (np.searchsorted(np.sort(one), moments, "right") for one in intervals)
    level: Ints = begun - ended
    return level
