"""The samples of a run: their engines, batches, groups and verdicts.

What the learner takes is a group where the samples of a group are used in one step. Where they are
used in several the queue hands out samples one by one, and each is a group of its own. A number
that comes again in each step (that of a prompt) is another group each time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.timeline.interval_lookup import (
    TIMED,
    alike,
    columns,
    levels,
    numbered,
    usual_most,
)
from rltrace.analysis.timeline.intervals import Floats, Ints
from rltrace.analysis.timeline.steps import Steps
from rltrace.analysis.whatif.workload import EngineModel, SampleBatch
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Fate, Stage

_VARIES = 0.05  # of the running sequences, below which their part of the pace cannot be told
_WAVES = 0.1  # part of a batch that begins late, from which on it comes in waves
_SAME = 0.05
_STEADY, _MOSTLY = 0.25, 0.6  # near the mean, for this part of the time
_TOOLS = 0.1  # part of the samples' time in tools, below which it matters little who has a place


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences that ended: engine (0, 1, ...), batch, when they had a place there and ended,
    tokens, seconds of tools in between."""

    worker: Ints
    batch: Ints
    begin_s: Floats
    end_s: Floats
    tokens: Floats
    env_s: Floats


@dataclass(frozen=True, eq=False)
class SteadySamples(Sequences):
    """Samples that ended within the steady steps, as they began; `batch` is the step of that."""

    group: Ints
    verdict_s: Floats
    judged_s: Floats  # when the verdict began; NaN: unknown
    used_s: Floats  # when it was first trained on or dropped; NaN: unknown
    used: float  # samples a step that were trained on or dropped, but for stale ones; NaN: unknown

    @property
    def ready_s(self) -> Floats:
        return np.fmax(self.end_s, self.judged_s + self.verdict_s)

    @property
    def spread(self) -> bool:
        return _apart(self.group, self.worker) > 0.5

    def steps_until_used(self, starts_s: Floats) -> Ints:
        """From the step in which a sample began to that which used it, of each that was used."""
        known = ~np.isnan(self.used_s)
        step: Ints = np.searchsorted(starts_s, self.used_s[known], side="right") - 1
        return step - self.batch[known]

    def in_batches(self) -> bool:
        """Whether the samples of a step begin together, as soon as all before are generated and
        judged. Where they begin later something else holds them up, as a lag bound does."""
        ready_s = np.maximum.accumulate(self.ready_s)[:-1]
        first = np.flatnonzero(self.begin_s[1:] >= ready_s) + 1
        usual = float(np.median(np.diff([0, *first, len(self.begin_s)])))
        if usual < 2 or not self.used / _SPARED < usual < self.used * _SPARED:
            return False
        between_s = float((self.begin_s[first] - ready_s[first - 1]).sum())
        return between_s < _PAUSES * float(ready_s[-1] - self.begin_s[0])


def fit_engine(
    sequences: Sequences, stream: bool = False
) -> tuple[EngineModel, tuple[str, ...], bool]:
    """The engine that these ran on, what cannot be told of it, and whether it is known who has a
    place. `stream`: they did not come in batches.

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
    notes = []
    if not told:
        seen = "the number of running sequences never varied"
        notes.append(f"{seen}: decoding is taken not to depend on it")
    when = sequences.worker, sequences.begin_s, sequences.end_s
    slots, sure = places_of(*when)
    if not sure and not tools_s:
        slots = math.inf
    keeps = tools_s > 0 and math.isfinite(slots)
    most = float(max(levels(np.sort(b), np.sort(e))[1].max() for b, e in _by_worker(*when)))
    # One had several sequences of most batches to run.
    several = np.median(np.bincount(numbered(sequences.worker, sequences.batch)[0])) > 1
    if math.isinf(slots) and most == 1 and several:
        slots, keeps = 1.0, tools_s > 0
        seen = "no two sequences of a worker ever ran at once"
        notes.append(f"{seen}: it is taken to run one at a time")
    elif math.isinf(slots) and full and np.std(full) < _SAME * np.mean(full):
        slots = max(1.0, float(np.median(full)))  # a limit is the same in every batch
    elif keeps:
        seen = f"a worker has {slots:g} at once, whose tools keep their places"
        notes.append(f"{seen}: it begins another one only as one of them ends")
    engine = EngineModel(
        float(int(sequences.worker.max()) + 1), slots, lone, shared, tools_hold=keeps,
        seen_at_once=most if stream and math.isinf(slots) else np.inf,
    )  # fmt: skip
    sure |= tools_s < _TOOLS * (float(spent.sum()) + tools_s)
    return engine, tuple(notes), sure


def _running(sequences: Sequences, mine: Ints) -> tuple[Floats, list[float]]:
    """How many sequences ran in the mean while each of these decoded (tools answer halfway, as in a
    replay), and, in each batch that came in waves, while others waited for a place."""
    begin, end = sequences.begin_s[mine], sequences.end_s[mine]
    half = np.maximum(end - begin - sequences.env_s[mine], 1e-9) / 2
    called, answered = begin + half, end - half
    times = np.concatenate([begin, answered, called, end])
    order = np.argsort(times, kind="stable")
    count = np.cumsum(np.repeat([1.0, -1.0], 2 * len(begin))[order])
    at = times[order]
    area = np.empty(len(times))  # under the count until each of the times
    area[order] = np.concatenate([[0.0], np.cumsum(count[:-1] * np.diff(at))])
    until_begin, until_answered, until_called, until_end = area.reshape(4, -1)
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
    ran = until_called - until_begin + until_end - until_answered
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
    """Seconds a token alone and for each sequence beside it, and whether the two are told apart."""
    together = tokens * beside
    total = float(tokens @ tokens)
    mean = float(tokens @ spent) / total if total else 0.0
    if beside.std() < _VARIES * beside.mean():
        return mean, 0.0, False
    (lone, shared), *_ = np.linalg.lstsq(np.stack([tokens, together], axis=1), spent, rcond=None)
    if shared < 0:
        return mean, 0.0, True
    if lone < 0:
        return 0.0, float(together @ spent) / float(together @ together), True
    return float(lone), float(shared), True


# --- places: how many samples a worker may have on their way at once, those in their tools too.
# Where these keep their places, one begins as another ends, and only where the worker is full.
# Where they give them away, others begin meanwhile; where nothing limits them they begin together.

_AT_ONCE = 0.05  # of a sample's time over the root of the places, in which the next one begins
_FOLLOWED = 0.05  # part of the ends that another sample follows at once; fewer tell nothing
_LEAST = 8
_FULL, _LIMITED = 0.8, 0.35  # part of those at which the worker was full: there is a limit; none


def places_of(worker: Ints, begin_s: Floats, end_s: Floats) -> tuple[float, bool]:
    """Samples on their way at once at a worker (0, 1, ...), at the most, by when these began and
    ended, and whether the run tells; infinite where no limit was seen."""
    found = [_followed_at(*times) for times in _by_worker(worker, begin_s, end_s)]
    limits, ends, followed, full = np.array(found).T
    least = max(_LEAST, _FOLLOWED * ends.sum())
    if followed.sum() < least or full.sum() < _LIMITED * followed.sum():
        return np.inf, True
    return float(np.median(limits)), bool(full.sum() >= _FULL * followed.sum())


def _followed_at(begin_s: Floats, end_s: Floats) -> tuple[int, int, int, int]:
    """The most that are on their way for more than a rare moment; how many ended, how many of those
    another one followed at once, and at how many of these as many as that had been on their way."""
    begins, ends = np.sort(begin_s), np.sort(end_s)
    times, level = levels(begins, ends)
    limit, _ = usual_most(times, level)
    soon_s = _AT_ONCE * float(np.median(end_s - begin_s)) / max(1, limit) ** 0.5
    begun = np.searchsorted(begins, ends + soon_s, "right")
    followed = ends[begun > np.searchsorted(begins, ends, "left")]
    was_full = np.concatenate([[0], np.cumsum(level >= limit)])
    since = np.maximum(0, np.searchsorted(times, followed - soon_s, "left") - 1)
    full = was_full[np.searchsorted(times, followed, "left")] > was_full[since]
    return limit, len(ends), len(followed), int(full.sum())


def _by_worker(worker: Ints, begin_s: Floats, end_s: Floats) -> list[tuple[Floats, Floats]]:
    return [(begin_s[mine], end_s[mine]) for _, mine in alike(worker)]


_MOST_SAMPLES = 256  # of a batch that are played; slots and servers shrink alike
_LEAST_BATCHES = 6
_MOST_PLAYED = _LEAST_BATCHES * _MOST_SAMPLES  # more batches where they are small
_SPLIT = 0.1  # part of the groups that may be used in several steps where groups are handed out
_PAUSES = 0.1  # part of the time between batches that begin as soon as they can
_SPARED = 1.5  # begun for each one used: beyond it more is lost than what is still on its way
_WORKED = 0.8  # of the latency of verdicts, from which on they waited for nobody
_EARLY = 0.1  # part of a batch's generation before whose end a verdict begins without a barrier


_SQL = packaged_toml("analysis/data/queries.toml")
_OF_SPANS: str = _SQL["of_spans"].format(Stage=Stage)


def samples_of(run: OpenedRun, steps: Steps, placement: str) -> SteadySamples | None:
    """The samples of `run`; None where none was recorded with its length."""
    steady = [steps.windows[i] for i in steps.steady]
    origin, last = steady[0].start_ns, steady[-1].end_ns
    within = f"where t.end_ns > {origin} and t.start_ns < {last}"
    query = _SQL["with_lengths"].format(within=within)
    trajectory, *found = columns(run, query)
    if by_span := not len(trajectory):
        trajectory, *found = columns(run, f"{_OF_SPANS} {within}")
    starts = np.array([window.start_ns for window in steady], np.int64)
    begun, ended, used = found[2], found[4], found[-1]
    batch = _made_for(begun, ended, used, np.append(starts, last), placement)
    inside = (batch >= 0) & (batch < len(starts))
    if not inside.any():
        return None
    trajectory, batch = trajectory[inside], batch[inside]
    found = [column[inside] for column in found]
    order = np.lexsort((found[0], trajectory, found[2]))  # in less memory than an ordered query
    if (judged_in_order := found[-2].take(order) > 0).any():  # after the last none was judged yet
        order = order[: np.flatnonzero(judged_in_order)[-1] + 1]
    batch, *found = (column.take(order) for column in (batch, *found))
    process, group, start, first, end, tokens, env, verdict, judged, used = found
    begin = _placed(process, start, first, end)
    group, _ = numbered(group) if placement == "async" else numbered(batch, group)
    known = used > 0
    if _apart(group[known], np.searchsorted(starts, used[known], side="right")) > _SPLIT:
        group = np.arange(len(group))
    judged_s, used_s = (np.where(at > 0, (at - origin) / 1e9, np.nan) for at in (judged, used))
    used_between = _SQL["used_between"].format(Fate=Fate, since=origin, until=last)
    ((uses,),) = run.ask(used_between)
    return SteadySamples(
        batch=batch, worker=np.unique(process, return_inverse=True)[1], group=group,
        begin_s=(begin - origin) / 1e9, end_s=(end - origin) / 1e9,
        tokens=tokens / (tokens.max() if by_span else 1), env_s=env / 1e9, verdict_s=verdict / 1e9,
        judged_s=judged_s, used_s=used_s, used=uses / len(steady) or math.nan,
    )  # fmt: skip


def _placed(worker: Ints, start: Ints, first: Ints, end: Ints) -> Ints:
    """When each sample had a place at its worker: at its start or, where it waited for one, when
    the last other had ended before its first token. What comes before that token is its prefill."""
    found = start.copy()
    for _, mine in alike(worker):
        ends = np.concatenate([[-1], np.sort(end[mine])])
        ended = ends[np.searchsorted(ends, first[mine], side="right") - 1]
        found[mine] = np.maximum(start[mine], ended)
    return found


def _made_for(start: Ints, end: Ints, used: Ints, starts: Ints, placement: str) -> Ints:
    """The step (place in `starts`) in which each sample began, or was to: where they take turns a
    learner's rank may begin to generate just before the step of the one that keeps the time."""
    place = np.searchsorted(starts, start, side="right") - 1
    if placement != "colocated":
        return place
    next_ns = starts[np.minimum(place + 1, len(starts) - 1)]
    early = (start < next_ns) & (end - next_ns > next_ns - start)
    return place + (early & ((used <= 0) | (used >= next_ns)))


def _apart(group: Ints, place: Ints) -> float:
    """The part of the groups (0, 1, ...) of several samples that have them in several places."""
    _, first = numbered(group, place)
    places, members = np.bincount(group[first]), np.bincount(group)
    several = members > 1
    return float((places[several] > 1).mean()) if several.any() else 0.0


def batches_of(
    samples: SteadySamples, steps: int, placement: str
) -> tuple[tuple[SampleBatch, ...], float]:
    """The samples of each step that are played, and how many one of them stands for. Without
    barriers the groups are dealt out evenly, in the order in which they began."""
    _, first, group = np.unique(samples.group, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    number = np.argsort(order)[group]  # of the group, in the order of their beginning
    members = len(samples.group) / len(order)
    of_group = samples.batch[first[order]]
    if placement == "async":
        of_group = _dealt(np.bincount(number), samples.used, steps)
    counts = np.bincount(of_group[of_group >= 0])
    usual = int(np.median(counts[counts > 0]))
    kept = max(1, min(usual, int(_MOST_SAMPLES / members)))
    made: list[SampleBatch] = []
    every: list[int] = []  # which of the samples of its groups is played: those may be large
    # Those cut off by an end of the run are left out; of the others all lengths are played.
    whole = np.flatnonzero(counts >= usual)
    longest_s, of_sample = np.zeros(len(counts)), of_group[number]
    lasts_s, inside = samples.ready_s - samples.begin_s, of_sample >= 0
    np.maximum.at(longest_s, of_sample[inside], lasts_s[inside])
    most = max(_LEAST_BATCHES, int(_MOST_PLAYED / (kept * members)))
    if len(whole) > most:
        ranked = whole[np.argsort(longest_s[whole], kind="stable")]
        whole = np.sort(ranked[((np.arange(most) + 0.5) * len(whole) / most).astype(int)])
    for batch in whole:
        groups = np.flatnonzero(of_group == batch)
        chosen = groups[np.linspace(0, len(groups) - 1, kept).round().astype(int)]
        mine = np.flatnonzero(np.isin(number, chosen))
        every.append(max(1, round(len(mine) / _MOST_SAMPLES)))
        mine = mine[:: every[-1]]
        tokens, group_of = samples.tokens[mine], tuple(number[mine].tolist())
        made.append(SampleBatch(tokens, samples.env_s[mine], samples.verdict_s[mine], group_of))
    return tuple(made), usual / kept * float(np.mean(every))


def _dealt(members: Ints, used: float, steps: int) -> Ints:
    """The batch of each group of a stream, by its samples: as many in each as the learner uses in a
    step (what is begun beyond fills the queue, unless it is lost); -1: cut off by an end."""
    begun = members.sum() / steps
    per_step = used if begun / _SPARED < used < begun * _SPARED else begun
    whole = np.flatnonzero(members >= np.median(members))
    inside = slice(whole[0], whole[-1] + 1)
    batch = np.full(len(members), -1, np.int64)
    each = max(1, round(per_step / members[inside].mean()))
    batch[inside] = np.arange(whole[-1] + 1 - whole[0]) // each
    return batch


def scoring_of(samples: SteadySamples, placement: str, in_batches: bool) -> str:
    """Whether verdicts waited for the batch, for the group, or for nobody."""
    known = ~np.isnan(samples.judged_s)
    if not known.any():
        return "batch" if placement == "colocated" else "group"
    judged, end = samples.judged_s, samples.end_s
    if placement != "async" or in_batches:
        early = []  # by batch, whether some verdict begins well before all is generated
        for mine in (rows for _, rows in alike(samples.batch) if known[rows].any()):
            last_s = end[mine].max()
            early_s = _EARLY * (last_s - samples.begin_s[mine].min())
            early.append(np.nanmin(judged[mine]) < last_s - early_s)
        if np.mean(early) < 0.5:
            return "batch"
    _, place, members = np.unique(samples.group, return_inverse=True, return_counts=True)
    if members.max() == 1:
        return "sample"
    last = np.zeros(place.max() + 1)
    np.maximum.at(last, place, end)
    return "sample" if (judged[known] < last[place[known]]).mean() > _EARLY else "group"


def judges_of(run: OpenedRun, samples: SteadySamples, since_ns: int) -> tuple[int, float, bool]:
    """Verdicts that were in the making at once, at the most (a process may make several), and the
    seconds of one, beyond which it waited for a judge (infinite: none did). They did where the
    spans of reward functions fill the time in which verdicts are awaited, and are far shorter.
    Last, whether a call makes those of several samples, one by one."""
    known = ~np.isnan(samples.judged_s) & (samples.verdict_s > 0)
    begin_s = samples.judged_s[known]
    times_s = begin_s, begin_s + samples.verdict_s[known]
    # In whole ns: the sum of two floats may be later than a verdict that begins just then.
    begin, end = (np.round(1e9 * one).astype(np.int64) + since_ns for one in times_s)
    if not len(begin):
        return 1, math.inf, False
    inside = f"start_ns >= {begin.min()} and end_ns <= {end.max()} and {TIMED}"
    calls = f"raw_spans where stage = {Stage.REWARD:d} and {inside}"
    *made, items = columns(run, f"select start_ns, end_ns, items from {calls}")
    asked, awaited_ns, latency_ns = _at_once(begin, end)
    at_once, busy_ns, work_ns = _at_once(*made)
    if work_ns < _WORKED * latency_ns and busy_ns > _WORKED * awaited_ns:
        return at_once, work_ns / len(begin) / 1e9, False
    return asked, math.inf, bool(asked <= at_once and items.sum() > len(items))


def _at_once(begin: Ints, end: Ints) -> tuple[int, int, int]:
    """How many intervals there were at once, at the most; ns of their union, and of all."""
    times, level = levels(begin, end)
    spans = np.diff(times)
    return int(level.max(initial=1)), int(spans[level[:-1] > 0].sum()), int((end - begin).sum())
