"""All trajectories that ended after warm-up as columns, for what looks at each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.intervals import Bools, Ints
from rltrace.analysis.steps import Steps
from rltrace.trace.vocabulary import Finish

if TYPE_CHECKING:
    from rltrace.trace.run import Run

Floats = NDArray[np.float64]

_CUT = (int(Finish.ABORT), int(Finish.TIMEOUT), int(Finish.ERROR))
_OF_ONE_STEP = 0.9


@dataclass(frozen=True)
class Generated:
    """One place for each trajectory, in the order of their ends; NaN: unknown (flags: 0 or 1).

    `start_ns` and `end_ns` are Unix ns; `verdict_s` is how long its verdicts took, one after the
    other. `batch` numbers the step in which a trajectory began and ended, where generation takes
    turns with the steps (`in_batches`): what a step waits for; -1: of none.
    """

    start_ns: Ints
    end_ns: Ints
    group: Ints
    tokens: Floats
    first_token_s: Floats
    env_s: Floats
    verdict_s: Floats
    preempted: Floats
    cut_short: Floats
    at_limit: Floats
    mixed: Floats
    batch: Ints
    in_batches: bool

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def latency_s(self) -> Floats:
        """From the request to the last token."""
        seconds: Floats = (self.end_ns - self.start_ns) / 1e9
        return seconds

    def batches(self) -> list[Ints]:
        """The places of each batch, in order."""
        order = np.argsort(self.batch, kind="stable")
        order = order[self.batch[order] >= 0]
        cuts = np.flatnonzero(np.diff(self.batch[order])) + 1
        return [part for part in np.split(order, cuts) if len(part)]


def ended_within(steps: Steps) -> str:
    """The SQL condition that a row is an interval which ended within the steady steps."""
    since, until = steps.steady_ns
    return f"start_ns > 0 and end_ns >= start_ns and end_ns >= {since} and end_ns < {until}"


def read_generated(run: Run, steps: Steps, placement: str = "") -> Generated:
    """Reads them once. One that several processes recorded lasts from its first to its last row."""
    within = ended_within(steps)
    # A relation's answer: of a long run it takes a tenth less memory than that of `ask_columns`.
    found = run.sql(f"""
        with several as materialized (
            select trajectory from raw_trajectories where {within} and trajectory <> -1
            group by trajectory having count(*) > 1),
        ended as (
            select trajectory, min(start_ns) as start_ns, max(end_ns) as end_ns,
                   coalesce(max(nullif("group", -1)), -1) as "group",
                   max(response_tokens) as tokens,
                   min(first_token_ns) filter (first_token_ns > 0) as first_token_ns,
                   max(env_ns) as env_ns, max(preemptions) as preemptions, max(finish) as finish,
                   min(nullif(first_version, -1)) as first, max(nullif(last_version, -1)) as last
            from raw_grouped_trajectories where {within} and trajectory in (from several)
            group by trajectory
            union all
            select trajectory, start_ns, end_ns, "group", response_tokens,
                   case when first_token_ns > 0 then first_token_ns end, env_ns, preemptions,
                   finish, nullif(first_version, -1), nullif(last_version, -1)
            from raw_grouped_trajectories anti join several using (trajectory) where {within})
        select start_ns, end_ns, "group",
               nullif(tokens, -1)::double as tokens,
               case when first_token_ns >= start_ns and first_token_ns <= end_ns
                    then (first_token_ns - start_ns) / 1e9 end as first_token_s,
               nullif(env_ns, -1) / 1e9 as env_s, verdict_ns / 1e9 as verdict_s,
               (nullif(preemptions, -1) > 0)::double as preempted,
               (nullif(finish, -1) in {_CUT})::double as cut_short,
               (nullif(finish, -1) = {int(Finish.LENGTH)})::double as at_limit,
               (first <> last)::double as mixed
        from ended left join sample_verdicts using (trajectory)
    """).fetchnumpy()
    order = np.argsort(found["end_ns"], kind="stable")

    def column(name: str) -> Floats:
        return np.ma.filled(np.ma.asarray(found.pop(name), np.float64), np.nan).take(order)

    def whole(name: str) -> Ints:
        return np.asarray(found.pop(name), np.int64).take(order)

    start, end = whole("start_ns"), whole("end_ns")
    batch, in_batches = _batches(start, end, steps, placement)
    return Generated(
        start_ns=start,
        end_ns=end,
        group=whole("group"),
        tokens=column("tokens"),
        first_token_s=column("first_token_s"),
        env_s=column("env_s"),
        verdict_s=column("verdict_s"),
        preempted=column("preempted"),
        cut_short=column("cut_short"),
        at_limit=column("at_limit"),
        mixed=column("mixed"),
        batch=batch,
        in_batches=in_batches,
    )


def _batches(start: Ints, end: Ints, steps: Steps, placement: str) -> tuple[Ints, bool]:
    """`(step of each, whether generation takes turns with the steps)`: not where it never stops,
    though short trajectories begin and end in a step there, too."""
    none = np.full(len(start), -1, np.int64)
    if steps.whole_run or placement == "async" or not len(start):
        return none, False
    begins = np.array([w.start_ns for w in steps.windows], np.int64)
    ends = np.array([w.end_ns for w in steps.windows], np.int64)
    step = _place(end, begins, ends)
    within: Bools = (step >= 0) & (step == _place(start, begins, ends))
    ended = int((step >= 0).sum())
    if not ended or within.sum() < _OF_ONE_STEP * ended:
        return none, False
    return np.where(within, step, -1), True


def _place(moments: Ints, begins: Ints, ends: Ints) -> Ints:
    place = np.searchsorted(begins, moments, side="right") - 1
    return np.where((place >= 0) & (moments <= ends[place]), place, -1)
