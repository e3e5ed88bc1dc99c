"""When all samples of a process are in their tools: then nothing is generated there.

A span of generation around a whole batch lasts while each sample, in a task or thread of its own,
waits for its tools. What a lane does says nothing of another lane, so the tools cannot be cut out
of that span; but of a process that records its samples and their tools, it is known when none of
them is left to be decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.columns import columns, numbered
from rltrace.analysis.intervals import Intervals, Ints, of_spans, union
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_AS_SAID = 1.1  # times what the samples say of their tools; what takes longer is of others, too


def all_in_tools(run: Run) -> Intervals:
    """Disjoint intervals (group: the process) in which as many tools run as samples are under way,
    of processes that have spans of generation."""
    found = run.ask(f"""
        select process from span_stages where stage in ({int(Stage.ENV)}, {int(Stage.ROLLOUT)})
        group by process having count(*) = 2
    """)
    if not found:
        return _intervals(*[np.zeros(0, np.int64)] * 3)
    both = ", ".join(str(process) for (process,) in found)
    owner, lane, start, end = columns(
        run,
        f"select process, lane, start_ns, end_ns from raw_spans where stage = {int(Stage.ENV)} "
        f"and start_ns > 0 and end_ns > start_ns and process in ({both})",
    )
    process, begin, over, said = columns(
        run,
        "select process, start_ns, end_ns, env_ns from raw_trajectories "
        f"where start_ns > 0 and end_ns > start_ns and process in ({both})",
    )
    number, first = numbered(owner, lane)
    tools = union(of_spans(number, start, end, np.zeros_like(start)))
    owner = owner[first][tools.group]
    trusted = _trusted(owner, tools, process, said)
    kept = np.isin(owner, trusted)
    mine = np.isin(process, trusted)
    return _full(
        (process[mine], begin[mine], over[mine]), (owner[kept], tools.start[kept], tools.end[kept])
    )


def _trusted(owner: Ints, tools: Intervals, process: Ints, said: Ints) -> Ints:
    """Processes whose spans of tools are those of its samples, as far as these tell."""
    found = np.unique(owner)
    took = np.bincount(np.searchsorted(found, owner), tools.end - tools.start, len(found))
    known = np.isin(process, found) & (said > 0)
    told = np.bincount(np.searchsorted(found, process[known]), said[known], len(found))
    trusted: Ints = found[(told == 0) | (took <= _AS_SAID * told)]
    return trusted


def _full(samples: tuple[Ints, Ints, Ints], tools: tuple[Ints, Ints, Ints]) -> Intervals:
    """Where at least as many tools run as samples, of each process, and a sample at all."""
    process = np.concatenate([samples[0], samples[0], tools[0], tools[0]])
    times = np.concatenate([samples[1], samples[2], tools[1], tools[2]])
    one, none = np.ones(len(samples[0]), np.int64), np.zeros(len(samples[0]), np.int64)
    run, rest = np.ones(len(tools[0]), np.int64), np.zeros(len(tools[0]), np.int64)
    order = np.lexsort((times, process))
    under_way = np.cumsum(np.concatenate([one, -one, rest, rest])[order])[:-1]
    running = np.cumsum(np.concatenate([none, none, run, -run])[order])[:-1]
    process, times = process[order], times[order]
    full = (under_way > 0) & (running >= under_way) & (np.diff(times) > 0)
    return union(_intervals(process[:-1][full], times[:-1][full], times[1:][full]))


def _intervals(group: Ints, start: Ints, end: Ints) -> Intervals:
    return of_spans(group, start, end, np.zeros_like(start))
