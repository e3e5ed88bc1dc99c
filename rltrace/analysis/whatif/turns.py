"""Samples whose turns were recorded one by one: what waits for a place within a sample's own time.

A sample may begin before it has a place at an engine, and wait for one again after each tool. Its
own time does not tell that; spans of its turns do. As many turns as ever run for as long as others
wait where the engine has so many places, and a tool keeps its sample's place where turns and tools
together are never more than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.columns import alike, columns
from rltrace.analysis.intervals import Ints
from rltrace.analysis.lanes import Lane
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_SEVERAL = 1.5  # turns for each sample
_WAITED = 1.2  # times its turns that a sample's own time is; less is no line
_LEAST_FULL = 0.5  # of the time in which samples wait, places are taken


@dataclass(frozen=True)
class Turns:
    """Seconds a token of a turn, and its tokens in the mean; the places of a worker, and whether
    tools keep them. `sure`: whether the turns tell for what samples waited."""

    token_s: float
    tokens: float
    places: float
    tools_hold: bool
    sure: bool


def turns_of(run: Run, since_ns: int, until_ns: int) -> Turns | None:
    """The turns of samples between two moments (ns); None where they were not recorded one by one,
    or samples wait for nothing within their own time."""
    inside = f"start_ns >= {since_ns} and end_ns < {until_ns} and end_ns > start_ns"
    process, begin, end, env, tokens = columns(
        run,
        "select process, start_ns, end_ns, greatest(env_ns, 0), greatest(response_tokens, 0) "
        f"from raw_trajectories where {inside}",
    )
    spans = columns(
        run,
        f"select process, start_ns, end_ns, stage from raw_spans where {inside} "
        f"and stage in ({int(Stage.ROLLOUT)}, {int(Stage.ENV)}) "
        "and process in (select process from raw_trajectories)",
    )
    turns = spans[3] == Stage.ROLLOUT
    if not tokens.sum() or turns.sum() < _SEVERAL * len(begin):
        return None
    worked_ns = float((spans[2] - spans[1])[turns].sum())
    own_ns = float((end - begin - env).sum())
    if own_ns < _WAITED * worked_ns:
        return None
    spans_of = dict(alike(spans[0]))
    found = []
    for one, mine in alike(process):
        theirs = spans_of.get(one, mine[:0])
        in_turn, in_tool = theirs[turns[theirs]], theirs[~turns[theirs]]
        found.append(
            _of_worker(
                [column[mine] for column in (begin, end)],
                [column[in_turn] for column in spans[1:3]],
                [column[in_tool] for column in spans[1:3]],
            )
        )
    places, hold, full = (np.array(column) for column in zip(*found, strict=True))
    sure = bool(full.min() >= _LEAST_FULL and (hold.all() or not hold.any()))
    all_tokens = float(tokens.sum())
    return Turns(
        token_s=worked_ns / 1e9 / all_tokens,
        tokens=all_tokens / float(turns.sum()),
        places=float(np.median(places)),
        tools_hold=bool(hold.all()),
        sure=sure,
    )


def _of_worker(
    samples: list[Ints], turns: list[Ints], tools: list[Ints]
) -> tuple[float, bool, float]:
    """The places of a worker, whether tools keep them, and for what part of the time in which
    samples wait all are taken."""
    at_work = [np.concatenate(pair) for pair in zip(turns, tools, strict=True)]
    running, busy = _lane(turns), _lane(at_work)
    hold = bool(len(tools[0])) and busy.capacity <= running.capacity
    times = np.unique(np.concatenate([*samples, *at_work]))[:-1]
    length = np.diff(np.unique(np.concatenate([*samples, *at_work])))
    waits = _level(samples, times) > _level(at_work, times)
    taken = _level(at_work if hold else turns, times) >= running.capacity
    waited = float(length[waits].sum())
    full = float(length[waits & taken].sum()) / waited if waited else 0.0
    return float(running.capacity), hold, full


def _lane(intervals: list[Ints]) -> Lane:
    start, end = intervals
    return Lane(start, end, np.arange(len(start)))


def _level(intervals: list[Ints], moments: Ints) -> Ints:
    """How many of the intervals are under way from each moment on."""
    begun, ended = (np.searchsorted(np.sort(one), moments, "right") for one in intervals)
    level: Ints = begun - ended
    return level
