"""The samples of a run: how they are dealt out to batches, and how they were judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rltrace.analysis.intervals import Ints
from rltrace.analysis.order_statistics import Floats
from rltrace.analysis.steps import Steps
from rltrace.analysis.whatif.workload import Batch
from rltrace.trace.vocabulary import Finish, Outcome

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_MOST_SAMPLES = 256  # of a batch that are played; slots and servers shrink alike
_LEAST_BATCHES = 12
_MOST_PLAYED = _LEAST_BATCHES * _MOST_SAMPLES  # more batches where they are small
_EARLY = 0.1  # part of a batch's generation before whose end a verdict begins without a barrier


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples that ended within the steady steps, in the order of their start; times in seconds.
    `batch` is the step in which a sample began, `worker` which engine ran it."""

    batch: Ints
    worker: Ints
    group: Ints
    start_s: Floats
    end_s: Floats
    tokens: Floats
    first: Floats  # 1 where a sample's time begins with its first token, 0 where before it
    env_s: Floats
    verdict_s: Floats
    judged_s: Floats  # when the verdict began; NaN: unknown
    failed: Floats


def samples_of(run: Run, steps: Steps) -> Samples | None:
    steady = [steps.windows[i] for i in steps.steady]
    origin, last = steady[0].start_ns, steady[-1].end_ns
    ok, broken = int(Outcome.OK), f"{int(Finish.TIMEOUT)}, {int(Finish.ERROR)}"
    query = f"""
        with verdicts as (
            select trajectory, sum(end_ns - start_ns) as verdict_ns, min(start_ns) as judged_ns,
                   bool_or(outcome > {ok}) as unjudged
            from raw_rewards where start_ns > 0 and end_ns >= start_ns and trajectory <> -1
            group by trajectory)
        select t.process, coalesce(nullif(t."group", -1), t.trajectory) as sample_group,
               t.start_ns, case when first_token_ns >= t.start_ns then first_token_ns
                                else t.start_ns end as begin_ns,
               t.end_ns, response_tokens, (first_token_ns >= t.start_ns)::bigint as first_seen,
               greatest(env_ns, 0) as env_ns,
               coalesce(verdict_ns, 0) as verdict_ns, coalesce(judged_ns, -1) as judged_ns,
               (finish in ({broken}) or coalesce(unjudged, false))::bigint as failed
        from raw_grouped_trajectories t left join verdicts v
             on t.trajectory = v.trajectory and t.trajectory <> -1
        where t.start_ns >= {origin} and t.start_ns < {last} and t.end_ns > t.start_ns
              and response_tokens > 0
        order by t.start_ns
    """
    table = pa.RecordBatchReader.from_stream(run.sql(query)).read_all()
    columns = [column.to_numpy().astype(np.int64) for column in table.columns]
    process, group, start, begin, end, tokens, first, env, verdict, judged, failed = columns
    if not len(process):
        return None
    starts = np.array([window.start_ns for window in steady], np.int64)
    return Samples(
        batch=np.searchsorted(starts, start, side="right") - 1,
        worker=np.unique(process, return_inverse=True)[1],
        group=group,
        start_s=(begin - origin) / 1e9,
        end_s=(end - origin) / 1e9,
        tokens=tokens.astype(np.float64),
        first=first.astype(np.float64),
        env_s=env / 1e9,
        verdict_s=verdict / 1e9,
        judged_s=np.where(judged > 0, (judged - origin) / 1e9, np.nan),
        failed=failed.astype(np.float64),
    )


def batches_of(samples: Samples, steps: int, placement: str) -> tuple[tuple[Batch, ...], float]:
    """The samples of each step, at most so many of each, and how many one of them stands for.
    Without barriers the groups are dealt out evenly, in the order in which they began."""
    _, first, group = np.unique(samples.group, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    number = rank[group]  # of the group, in the order of their beginning
    each = max(1, round(len(order) / steps))
    began = samples.batch[first[order]]
    of_group = np.arange(len(order)) // each if placement == "async" else began
    counts = np.bincount(of_group)
    usual = int(np.median(counts[counts > 0]))
    members = len(samples.group) / len(order)
    kept = max(1, min(usual, int(_MOST_SAMPLES / members)))
    made: list[Batch] = []
    # Those that are cut off by an end of the run are left out; lengths change as the policy learns,
    # so those that are played are spread over the run.
    whole = np.flatnonzero(counts >= usual)
    most = max(_LEAST_BATCHES, int(_MOST_PLAYED / (kept * members)))
    few = np.unique(np.linspace(0, len(whole) - 1, most).round().astype(int))
    for batch in whole[few]:
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


def scoring_of(samples: Samples, placement: str) -> str:
    """Whether verdicts waited for the batch, for the group, or for nobody."""
    known = ~np.isnan(samples.judged_s)
    if not known.any():
        return "batch" if placement == "colocated" else "group"
    judged, end = samples.judged_s[known], samples.end_s
    if placement != "async":
        batch = samples.batch
        spans = [
            (end[batch == one].max() - samples.start_s[batch == one].min(), one)
            for one in np.unique(batch[known])
        ]
        streams = [
            judged[batch[known] == one].min() < end[batch == one].max() - _EARLY * span
            for span, one in spans
        ]
        if np.mean(streams) < 0.5:
            return "batch"
    _, place = np.unique(samples.group, return_inverse=True)
    last = np.zeros(place.max() + 1)
    np.maximum.at(last, place, end)
    return "sample" if (judged < last[place[known]]).mean() > _EARLY else "group"


def judged_at_once(samples: Samples) -> int:
    """Verdicts that were in the making at once, at the most: a process may make several."""
    known = ~np.isnan(samples.judged_s) & (samples.verdict_s > 0)
    begin = samples.judged_s[known]
    times = np.concatenate([begin + samples.verdict_s[known], begin])
    order = np.argsort(times, kind="stable")  # one that ends makes room for one that begins
    change = np.repeat([-1, 1], len(begin))[order]
    return max(1, int(np.cumsum(change).max(initial=1)))
