"""The samples of a run: how they are dealt out to batches, and how they were judged.

What the learner takes is a group where the samples of a group are used in one step. Where they are
used in several the queue hands out samples one by one, and each is a group of its own. A number
that comes again in each step (that of a prompt) is another group each time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.intervals import Bools, Floats, Ints
from rltrace.analysis.lanes import levels
from rltrace.analysis.steps import Steps
from rltrace.analysis.whatif.engine_fit import Sequences
from rltrace.analysis.whatif.workload import Batch
from rltrace.trace.query_columns import alike, columns, numbered
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Fate

_MOST_SAMPLES = 256  # of a batch that are played; slots and servers shrink alike
_LEAST_BATCHES = 6
_MOST_PLAYED = _LEAST_BATCHES * _MOST_SAMPLES  # more batches where they are small
_SPLIT = 0.1  # part of the groups that may be used in several steps where groups are handed out
_PAUSES = 0.1  # part of the time between batches that begin as soon as they can
_SPARED = 1.5  # begun for each one used: beyond it more is lost than what is still on its way
_EARLY = 0.1  # part of a batch's generation before whose end a verdict begins without a barrier


@dataclass(frozen=True, eq=False)
class Samples(Sequences):
    """Samples that ended within the steady steps, in the order of their start; times in seconds.
    `batch` is the step in which a sample began, `group` a number from 0 on."""

    group: Ints
    first: Bools  # whether its time begins with its first token, and not before it
    verdict_s: Floats
    judged_s: Floats  # when the verdict began; NaN: unknown
    used_s: Floats  # when it was first trained on or dropped; NaN: unknown
    used: float  # samples a step that were trained on or dropped, but for stale ones; NaN: unknown

    @property
    def ready_s(self) -> Floats:
        """When each was generated and judged."""
        judged_s = np.where(np.isnan(self.judged_s), -np.inf, self.judged_s + self.verdict_s)
        return np.maximum(self.end_s, judged_s)

    @property
    def spread(self) -> bool:
        """Whether the samples of a group run on several engines."""
        return _apart(self.group, self.worker) > 0.5

    def steps_until_used(self, starts_s: Floats) -> Ints:
        """From the step in which a sample began to that which used it, of each that was used."""
        known = ~np.isnan(self.used_s)
        step = np.searchsorted(starts_s, self.used_s[known], side="right") - 1
        later: Ints = step - self.batch[known]
        return later

    def in_batches(self) -> bool:
        """Whether the samples of a step begin together, as soon as all before are generated and
        judged. Where they begin later something else holds them up, as a lag bound does."""
        ready_s = np.maximum.accumulate(self.ready_s)[:-1]
        first = np.flatnonzero(self.begin_s[1:] >= ready_s) + 1
        members = np.diff([0, *first, len(self.begin_s)])
        usual = float(np.median(members))
        if usual < 2 or not self.used / _SPARED < usual < self.used * _SPARED:
            return False
        between_s = float((self.begin_s[first] - ready_s[first - 1]).sum())
        return between_s < _PAUSES * float(ready_s[-1] - self.begin_s[0])


def samples_of(run: Run, steps: Steps, placement: str) -> Samples | None:
    """The samples of `run`; None where none was recorded with its length."""
    steady = [steps.windows[i] for i in steps.steady]
    origin, last = steady[0].start_ns, steady[-1].end_ns
    query = f"""
        select t.trajectory, t.process,
               coalesce(nullif(t."group", -1), t.trajectory) as sample_group,
               t.start_ns, case when first_token_ns >= t.start_ns then first_token_ns
                                else t.start_ns end as begin_ns,
               t.end_ns, response_tokens, (first_token_ns >= t.start_ns)::tinyint as first_seen,
               greatest(env_ns, 0) as env_ns,
               coalesce(verdict_ns, 0) as verdict_ns, coalesce(judged_ns, -1) as judged_ns,
               coalesce(used_ns, -1) as used_ns
        from raw_grouped_trajectories t left join sample_verdicts v
             on t.trajectory = v.trajectory and t.trajectory <> -1
             left join (select trajectory, used_ns from sample_lives where used_ns is not null) u
             on t.trajectory = u.trajectory and t.trajectory <> -1
        where t.start_ns >= {origin} and t.start_ns < {last} and t.end_ns > t.start_ns
              and response_tokens > 0
    """
    trajectory, *found = columns(run, query)
    if not len(trajectory):
        return None
    order = np.lexsort((found[0], trajectory, found[2]))  # in less memory than an ordered query
    if (judged_in_order := found[9].take(order) > 0).any():  # after the last none was judged yet
        order = order[: np.flatnonzero(judged_in_order)[-1] + 1]
    process, group, start, begin, end, tokens, first, env, verdict, judged, used = (
        column.take(order) for column in found
    )
    starts = np.array([window.start_ns for window in steady], np.int64)
    batch = np.searchsorted(starts, start, side="right") - 1
    group, _ = numbered(group) if placement == "async" else numbered(batch, group)
    known = used > 0
    if _apart(group[known], np.searchsorted(starts, used[known], side="right")) > _SPLIT:
        group = np.arange(len(group))
    return Samples(
        batch=batch,
        worker=np.unique(process, return_inverse=True)[1],
        group=group,
        begin_s=(begin - origin) / 1e9,
        end_s=(end - origin) / 1e9,
        tokens=tokens.astype(np.float64),
        first=first.astype(np.bool_),
        env_s=env / 1e9,
        verdict_s=verdict / 1e9,
        judged_s=_since(judged, origin),
        used_s=_since(used, origin),
        used=_used(run, origin, last) / len(steady),
    )


def _since(moments: Ints, origin: int) -> Floats:
    """Seconds since then; NaN of moments that are not known."""
    return np.where(moments > 0, (moments - origin) / 1e9, np.nan)


def _used(run: Run, since_ns: int, until_ns: int) -> float:
    """Samples that were trained on or dropped between two moments; NaN where no use is known."""
    ((count,),) = run.ask(
        "select count(distinct trajectory) from raw_uses where trajectory <> -1 "
        f"and fate <> {int(Fate.STALE)} and time_ns >= {since_ns} and time_ns < {until_ns}"
    )
    return float(count) or np.nan


def _apart(group: Ints, place: Ints) -> float:
    """The part of the groups (0, 1, ...) of several samples that have them in several places."""
    _, first = numbered(group, place)
    places, members = np.bincount(group[first]), np.bincount(group)
    several = members > 1
    return float((places[several] > 1).mean()) if several.any() else 0.0


def batches_of(samples: Samples, steps: int, placement: str) -> tuple[tuple[Batch, ...], float]:
    """The samples of each step, at most so many of each, and how many one of them stands for.
    Without barriers the groups are dealt out evenly, in the order in which they began."""
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
    made: list[Batch] = []
    # Those that are cut off by an end of the run are left out. Those that are played are spread
    # over all in the order of their longest sample: one in several may be much longer.
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
        made.append(
            Batch(
                samples.tokens[mine],
                samples.env_s[mine],
                samples.verdict_s[mine],
                tuple(int(n) for n in number[mine]),
            )
        )
    return tuple(made), usual / kept


def _dealt(members: Ints, used: float, steps: int) -> Ints:
    """The batch of each group, of so many samples, where they come in a stream: as many in each as
    the learner uses in a step. What is begun beyond that fills the queue, unless it is lost. -1 for
    groups that an end of the run cuts off."""
    begun = members.sum() / steps
    per_step = used if begun / _SPARED < used < begun * _SPARED else begun
    whole = np.flatnonzero(members >= np.median(members))
    inside = slice(whole[0], whole[-1] + 1)
    batch = np.full(len(members), -1, np.int64)
    each = max(1, round(per_step / members[inside].mean()))
    batch[inside] = np.arange(whole[-1] + 1 - whole[0]) // each
    return batch


def scoring_of(samples: Samples, placement: str, in_batches: bool) -> str:
    """Whether verdicts waited for the batch, for the group, or for nobody."""
    known = ~np.isnan(samples.judged_s)
    if not known.any():
        return "batch" if placement == "colocated" else "group"
    judged, end = samples.judged_s, samples.end_s
    if placement != "async" or in_batches:
        streams = []
        for _, mine in alike(samples.batch):
            if known[mine].any():
                last_s = end[mine].max()
                early_s = _EARLY * (last_s - samples.begin_s[mine].min())
                streams.append(np.nanmin(judged[mine]) < last_s - early_s)
        if np.mean(streams) < 0.5:
            return "batch"
    _, place, members = np.unique(samples.group, return_inverse=True, return_counts=True)
    if members.max() == 1:
        return "sample"
    last = np.zeros(place.max() + 1)
    np.maximum.at(last, place, end)
    return "sample" if (judged[known] < last[place[known]]).mean() > _EARLY else "group"


def judged_at_once(samples: Samples) -> int:
    """Verdicts that were in the making at once, at the most: a process may make several."""
    known = ~np.isnan(samples.judged_s) & (samples.verdict_s > 0)
    begin = samples.judged_s[known]
    # In whole ns: the sum of two floats may be later than a verdict that begins just then.
    begin_ns, end_ns = (
        np.round(1e9 * one).astype(np.int64) for one in (begin, begin + samples.verdict_s[known])
    )
    return int(levels(begin_ns, end_ns)[1].max(initial=1))
