"""Who waited for what, and whether generation waited for weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.figures.devices import framework_of
from rltrace.analysis.timeline.interval_lookup import TIMED, columns
from rltrace.analysis.timeline.intervals import Floats, Intervals, Ints, merged
from rltrace.analysis.timeline.stage_chains import MOVES
from rltrace.analysis.timeline.steps import Steps
from rltrace.analysis.whatif.workload import AT_ONCE, GOES_ON
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Stage, SyncRole

_SQL = packaged_toml("analysis/data/queries.toml")
_SHOWN = 5


@dataclass(frozen=True)
class Wait:
    """One thing that was waited for (a queue, lock or barrier), by the processes of one role, in so
    many `threads` (or tasks) of them. `process_s` adds up their waits during the steady steps;
    `share` is that over the time that they had. `in_step`: the lane that records the steps waited,
    so it holds them up; back-pressure on work beside them does not."""

    name: str
    role: str
    processes: int
    threads: int
    spans: int
    process_s: float
    share: float
    in_step: bool


def waits(run: OpenedRun, steps: Steps) -> tuple[Wait, ...]:
    steady = [steps.windows[i] for i in steps.steady]
    if not steady:
        return ()
    since, until = steady[0].start_ns, steady[-1].end_ns
    rows = run.ask(_SQL["waits"].format(Stage=Stage, since=since, until=until, most=_SHOWN))
    window_s = (until - since) / 1e9
    return tuple(
        Wait(name, role, n, threads, spans, seconds, seconds / (threads * window_s), in_step)
        for name, role, n, threads, spans, seconds, in_step in rows
    )


# --- The time in which generation may have stood still for weights, where nobody recorded it. A
# loop of the user's own may record an update where weights are sent, and not where they are taken:
# spans of rollout stay open whether actors go on meanwhile or wait. Enough open samples tell it.

_LEAST = 8  # samples that would have ended while weights were sent; fewer tell nothing
_STILL, _GOES_ON = 0.15, 0.5  # part of them that did: generation may have stood still; went on
_CLEARER = 2.0  # times less of their time that tokens do not explain, if it did

Sends = Intervals
"""The time in which weights are sent, a union."""


def sends_in(run: OpenedRun) -> Sends | None:
    """The time in which processes that train send weights; None where nobody recorded any."""
    moving = f"select start_ns, end_ns from ({_moving('=', '')}) where end_ns > start_ns"
    start, end = columns(run, moving)
    return merged(start, end) if len(start) else None


def stopping(run: OpenedRun, sends: Sends) -> tuple[str, ...]:
    """What generation does while weights are sent, in a job that runs ahead
    (`Workload.weights_stop`); all that is possible where the run does not tell. Actors of an
    adapter, and those that record what they take, go on, as asynchronous engines do."""
    taken = f"select count(*) from ({_moving('<>', 'not')})"
    if framework_of(run)[0] or run.ask(taken)[0][0]:
        return (GOES_ON,)
    still = stood_still(run, sends)
    return (GOES_ON, AT_ONCE) if still is None else (AT_ONCE if still else GOES_ON,)


def _moving(source: str, trains: str) -> str:
    """The query `moves` of the stages in which weights move."""
    told = {"source": source, "trains": trains, "stages": tuple(map(int, MOVES))}
    return str(_SQL["moves"].format(Stage=Stage, SyncRole=SyncRole, **told))


def stood_still(run: OpenedRun, sends: Sends) -> bool | None:
    """Whether samples stood still while weights were sent; None where too few were under way to
    tell. They went on where they ended then. Where none did they stood still if that explains how
    long they took by their tokens."""
    query = f"select start_ns, end_ns, response_tokens from raw_trajectories where {TIMED}"
    begin, end, tokens = columns(run, query)
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
