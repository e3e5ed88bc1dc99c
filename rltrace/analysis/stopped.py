"""The time in which generation may have stood still for weights, where nobody recorded it.

In a loop of the user's own that records an update where weights are sent, and not where they are
taken, spans of rollout stay open whether actors go on meanwhile or wait. Samples may tell it where
enough of them were open then. Else both are possible.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rltrace.analysis.columns import alike, columns
from rltrace.analysis.framework import framework_of
from rltrace.analysis.intervals import Floats, Intervals, Ints, of_spans, union
from rltrace.analysis.pieces import Pieces
from rltrace.analysis.roles import MOVES, Role
from rltrace.analysis.whatif.workload import AT_ONCE, BETWEEN, GOES_ON
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Stage, SyncRole

_ROLLOUT, _SYNC = 1 << Stage.ROLLOUT, 1 << Stage.SYNC
_LEAST = 8  # samples that would have ended while weights were sent; fewer tell nothing
_STILL, _GOES_ON = 0.15, 0.5  # part of them that did: generation may have stood still; went on
_CLEARER = 2.0  # times less of their time that tokens do not explain, if it did
_BESIDE = 0.1  # of the time in which actors take weights; more of it in generation: they go on
_WAITED = 0.2  # of the time in which weights are sent; taken in less of it, nobody waits


Sends = Intervals
"""The time in which weights are sent, a union."""


def sends_of(start: Ints, end: Ints) -> Sends | None:
    """The time in which any of these goes on; None where there is none."""
    return union(of_spans(np.zeros_like(start), start, end)) if len(start) else None


def sends_in(run: Run) -> Sends | None:
    """The time in which processes that train send weights; None where nobody recorded any."""
    moving = f"select start_ns, end_ns from ({_moving('=', '')}) where end_ns > start_ns"
    return sends_of(*columns(run, moving))


def stopping(run: Run, sends: Sends) -> tuple[str, ...]:
    """What generation does while weights are sent, in a job that runs ahead
    (`Workload.weights_stop`); all that is possible where the run does not tell. Actors that record
    what they take tell it: where they generate nothing meanwhile they take weights between samples.
    An adapter's actors are taken to go on, as the engines of asynchronous frameworks do."""
    if framework_of(run)[0]:
        return (GOES_ON,)
    if nobody_tells(run):
        still = stood_still(run, sends)
        return (GOES_ON, AT_ONCE) if still is None else (AT_ONCE if still else GOES_ON,)
    return (BETWEEN if _taken_between(run, sends) else GOES_ON,)


def _taken_between(run: Run, sends: Sends) -> bool:
    """Whether actors take weights while they generate nothing, for much of the time in which they
    are sent."""
    moving = f"select * from ({_moving('<>', 'not')}) where end_ns > start_ns"
    process, *took = columns(run, moving)
    maker, *made = columns(
        run,
        "select process, start_ns, end_ns from raw_trajectories where start_ns > 0 and "
        "end_ns > start_ns",
    )
    made_by = dict(alike(maker))
    taken_ns, whole_ns, both_ns = 0, 0, 0
    for one, own in alike(process):
        if one not in made_by:
            continue
        taken, generated = np.stack(took)[:, own], np.stack(made)[:, made_by[one]]
        either = np.concatenate([taken, generated], axis=1)
        taken_ns += _covered_ns(taken)
        both_ns += _covered_ns(taken) + _covered_ns(generated) - _covered_ns(either)
        whole_ns += _length_ns(sends)
    return taken_ns > _WAITED * whole_ns and both_ns <= _BESIDE * taken_ns


def _covered_ns(intervals: Ints) -> int:
    """How long any of these (begins and ends) goes on."""
    covered = sends_of(*intervals)
    return _length_ns(covered) if covered else 0


def _length_ns(union: Intervals) -> int:
    return int((union.end - union.start).sum())


def _moving(source: str, trains: str) -> str:
    """Processes, begins and ends of updates whose role is or is not (`<>`) the source, and of spans
    of weight movement in processes that train, or that do `not`."""
    moves = ", ".join(str(int(stage)) for stage in MOVES)
    return f"""
        select process, start_ns, end_ns from raw_syncs
        where start_ns > 0 and role {source} {int(SyncRole.SOURCE)}
        union all
        select process, start_ns, end_ns from raw_spans
        where start_ns > 0 and stage in ({moves}) and process {trains} in
        (select process from span_stages where stage = {int(Stage.TRAIN)})
    """


def nobody_tells(run: Run) -> bool:
    """Whether nothing was recorded where weights are taken, by an adapter or by the job."""
    taken = f"select count(*) from ({_moving('<>', 'not')})"
    return not framework_of(run)[0] and not run.ask(taken)[0][0]


def stood_still(run: Run, sends: Sends) -> bool | None:
    """Whether samples that were being generated stood still while weights were sent; None where too
    few were to tell. They went on where they ended then. Where none did they stood still if that
    explains how long they took by their tokens; a learner that waits for each sample sends while
    the next one is never at its end."""
    begin, end, tokens = columns(
        run,
        "select start_ns, end_ns, response_tokens from raw_trajectories "
        "where start_ns > 0 and end_ns > start_ns",
    )
    within = sends.until(end) - sends.until(begin)
    rest = float((end - begin - within).sum())
    ended = sends.until(end) > sends.until(end - 1)
    expected = (~ended).sum() * within.sum() / rest if rest > 0 else 0.0
    if expected < _LEAST:
        return None
    part = ended.sum() / expected
    if part >= _GOES_ON:
        return False
    took, told = end - begin, tokens > 0
    if part >= _STILL or told.sum() < _LEAST:
        return None
    longer, left = (_unexplained(one[told], tokens[told]) for one in (took, took - within))
    return True if left < longer / _CLEARER else None


def _unexplained(took: Ints | Floats, tokens: Ints) -> float:
    """The standard deviation of times beside what tokens explain of them, ns."""
    columns = np.stack([np.ones(len(tokens)), tokens], axis=1)
    found, *_ = np.linalg.lstsq(columns, took.astype(np.float64), rcond=None)
    return float(np.std(took - columns @ found))


def stopped_share(run: Run, pieces: Pieces) -> tuple[float, bool] | None:
    """The part of the time of generation in which weights were being sent and nobody said what the
    actors did meanwhile, and whether they are known to have stood still; None where somebody said
    it, or they went on."""
    if not nobody_tells(run):
        return None
    sent = pieces.take(pieces.stage == Stage.SYNC)
    made = pieces.take(pieces.stage == Stage.ROLLOUT)
    sends = sends_of(sent.start_ns, sent.end_ns)
    if sends is None or not len(made):
        return None
    still = stood_still(run, sends)
    if still is False:
        return None
    within = sends.until(made.end_ns) - sends.until(made.start_ns)
    return float(within.sum()) / float((made.end_ns - made.start_ns).sum()), still is True


def stopped_role(role: Role, share: float, sent_s: float) -> Role:
    """What an actor does if for that part of its generation it waited for weights, and never
    generates in the `sent_s` seconds a step in which they are sent."""
    if not role.does((Stage.ROLLOUT,)):
        return role
    set_s = role.set_s.copy()
    for mask in range(len(set_s)):
        if mask & _ROLLOUT:
            set_s[mask & ~_ROLLOUT] += share * role.set_s[mask]
            set_s[mask] -= share * role.set_s[mask]
    set_s[_SYNC] += sent_s / role.part
    rows = role.rows
    if rows is not None and rows.stage is Stage.ROLLOUT:
        rows = replace(rows, work_s=rows.work_s * (1 - share))
    return replace(role, set_s=set_s, rows=rows)


def stopped_latency_s(latency_s: dict[Stage, float], share: float) -> dict[Stage, float]:
    """How long a sample is worked on by each stage, likewise."""
    whole_s = latency_s.get(Stage.ROLLOUT, 0.0)
    return latency_s | {Stage.ROLLOUT: whole_s * (1 - share), Stage.SYNC: whole_s * share}
