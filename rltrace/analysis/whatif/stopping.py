"""What generation does while weights travel, in a job that runs ahead.

Actors that record what they take tell it: where they generate nothing meanwhile they take weights
between samples. Where only the sender records updates, samples may tell (`stood_still`), else
nobody does. An adapter's actors are taken to go on, as the engines of asynchronous frameworks do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.columns import alike, columns
from rltrace.analysis.framework import framework_of
from rltrace.analysis.intervals import Ints, of_spans, union
from rltrace.analysis.roles import MOVES
from rltrace.analysis.stopped import Sends, nobody_tells, sends_of, stood_still
from rltrace.analysis.whatif.workload import AT_ONCE, BETWEEN, GOES_ON
from rltrace.trace.vocabulary import Stage, SyncRole

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_BESIDE = 0.1  # of the time in which actors take weights; more of it in generation: they go on
_WAITED = 0.2  # of the time in which weights are sent; taken in less of it, nobody waits


def stopping(run: Run, sends: Sends) -> tuple[str, ...]:
    """What it does (`Workload.weights_stop`); all that is possible where the run does not tell."""
    if framework_of(run)[0]:
        return (GOES_ON,)
    if nobody_tells(run):
        still = stood_still(run, sends)
        return (GOES_ON, AT_ONCE) if still is None else (AT_ONCE if still else GOES_ON,)
    return (BETWEEN if _taken_between(run, sends) else GOES_ON,)


def sends_in(run: Run) -> Sends | None:
    """The time in which processes that train send weights; None where nobody recorded any."""
    start, end = columns(run, _moving(f"role = {int(SyncRole.SOURCE)}", ""))[1:]
    return sends_of(start, end)


def _taken_between(run: Run, sends: Sends) -> bool:
    """Whether actors take weights while they generate nothing, for much of the time in which they
    are sent."""
    process, start, end = columns(run, _moving(f"role <> {int(SyncRole.SOURCE)}", "not"))
    made = columns(
        run,
        "select process, start_ns, end_ns from raw_trajectories where start_ns > 0 and "
        "end_ns > start_ns",
    )
    made_by = dict(alike(made[0]))
    taken_ns, whole_ns, both_ns = 0, 0, 0
    for one, own in alike(process):
        if one not in made_by:
            continue
        took = _united(start[own], end[own])
        generated = _united(*(column[made_by[one]] for column in made[1:]))
        taken_ns += _length(took)
        both_ns += _length(took) + _length(generated) - _length(_joined(took, generated))
        whole_ns += int(sends.before[-1])
    return taken_ns > _WAITED * whole_ns and both_ns <= _BESIDE * taken_ns


def _moving(role: str, trains: str) -> str:
    """Processes, begins and ends of updates of that role, and of spans of weight movement in
    processes that train, or that do `not`."""
    moves = ", ".join(str(int(stage)) for stage in MOVES)
    return f"""
        select process, start_ns, end_ns from raw_syncs
        where start_ns > 0 and end_ns > start_ns and {role}
        union all
        select process, start_ns, end_ns from raw_spans
        where start_ns > 0 and end_ns > start_ns and stage in ({moves}) and process {trains} in
        (select process from span_stages where stage = {int(Stage.TRAIN)})
    """


def _united(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    none = np.zeros_like(start)
    one = union(of_spans(none, start, end, none))
    return one.start, one.end


def _joined(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    return _united(np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]]))


def _length(intervals: tuple[Ints, Ints]) -> int:
    return int((intervals[1] - intervals[0]).sum())
