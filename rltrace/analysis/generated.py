"""All trajectories that ended after warm-up as columns, for what looks at each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.intervals import Ints
from rltrace.analysis.steps import Steps
from rltrace.trace.run import Run


@dataclass(frozen=True)
class Generated:
    """One place for each trajectory, in the order of their ends. `start_ns` and `end_ns` are Unix
    ns. `batch` numbers what was generated together, until nothing was in flight any more; -1:
    generation never stopped."""

    start_ns: Ints
    end_ns: Ints
    group: Ints
    batch: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def in_batches(self) -> bool:
        """Whether generation stops now and then, for a batch to end."""
        return bool((self.batch >= 0).any())

    def batches(self) -> list[Ints]:
        order = np.argsort(self.batch, kind="stable")
        order = order[self.batch[order] >= 0]
        cuts = np.flatnonzero(np.diff(self.batch[order])) + 1
        return [part for part in np.split(order, cuts) if len(part)]


def ended_within(steps: Steps) -> str:
    """The SQL condition that a row is an interval which ended within the steady steps."""
    since, until = steps.steady_ns
    return f"start_ns > 0 and end_ns >= start_ns and end_ns >= {since} and end_ns < {until}"


def read_generated(run: Run, steps: Steps) -> Generated:
    """Reads them once. One that several processes recorded lasts from its first to its last row."""
    within = ended_within(steps)
    # A relation's answer: of a long run it takes a tenth less memory than that of `ask_columns`.
    found = run.sql(f"""
        with several as materialized (
            select trajectory from raw_trajectories where {within} and trajectory <> -1
            group by trajectory having count(*) > 1),
        ended as (
            select trajectory, min(start_ns) as start_ns, max(end_ns) as end_ns,
                   coalesce(max(nullif("group", -1)), -1) as "group"
            from raw_grouped_trajectories where {within} and trajectory in (from several)
            group by trajectory
            union all
            select trajectory, start_ns, end_ns, "group"
            from raw_grouped_trajectories anti join several using (trajectory) where {within})
        select start_ns, end_ns, "group" from ended
    """).fetchnumpy()
    order = np.argsort(found["end_ns"], kind="stable")

    def whole(name: str) -> Ints:
        return np.asarray(found.pop(name), np.int64).take(order)

    start, end, group = whole("start_ns"), whole("end_ns"), whole("group")
    batch = _batches(start, end, several=len(steps.steady) > 1)
    return Generated(start, end, group, batch)


def _batches(start: Ints, end: Ints, several: bool) -> Ints:
    """What is generated from one moment at which nothing is in flight to the next. Where there is
    none in `several` steps, generation never stops."""
    order = np.argsort(start, kind="stable")
    reached = np.maximum.accumulate(end[order])
    begins = np.append(True, start[order][1:] >= reached[:-1])[: len(order)]
    if begins.sum() < 1 + several:
        return np.full(len(start), -1, np.int64)
    batch = np.empty(len(start), np.int64)
    batch[order] = np.cumsum(begins) - 1
    return batch
