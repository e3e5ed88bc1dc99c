"""When each process was in which stage: one pass over the spans of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rltrace.analysis.background import Background, find_background
from rltrace.analysis.codes import stage_of
from rltrace.analysis.columns import columns, numbered
from rltrace.analysis.intervals import (
    Intervals,
    Ints,
    Nested,
    OutOfOrder,
    Union,
    innermost,
    joined,
    mapped,
    of_spans,
    union,
    without,
)
from rltrace.analysis.intervals import union as union_of
from rltrace.analysis.untold_stages import untold_stages_of
from rltrace.trace.sampled import only_some
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_CODES = 16  # a group is `process * _CODES + stage`

TABLE_OF = {Stage.ROLLOUT: "trajectories", Stage.REWARD: "rewards", Stage.SYNC: "syncs"}
"""The table whose rows are the work of a stage, where it has no spans."""


@dataclass(frozen=True)
class OpenSpan:
    """A span that began and did not end: work in progress, a hang, or a process that was killed.
    `last_sign_ns` is the last moment at which its process is known to have lived (Unix ns)."""

    name: str
    stage: Stage
    process: int
    start_ns: int
    last_sign_ns: int


@dataclass(frozen=True)
class Activity:
    """Who was in which stage when.

    Each instant of a lane belongs to the innermost span, and none is generation in a process whose
    samples are all in their tools; an open span lasts until the last sign of
    life of its process. `first_ns` and `last_ns` bound everything (0 and 0: nothing). Stages
    `from_tables` have no spans and are taken from the table whose rows are their work
    (trajectories, rewards, syncs). Stages `by_trainers` ran in a process that trains, too. What is
    in the `background` counts as a process, and in no stage. Stages `untold` are of a run that has
    rows of a share of its samples only, and take all of them (`rltrace.analysis.untold_stages`).
    """

    spans_of_stage: dict[Stage, int]
    spans_of_process: dict[int, int]
    processes_of_stage: dict[Stage, int]
    by_trainers: frozenset[Stage]
    from_tables: tuple[Stage, ...]
    open_spans: tuple[OpenSpan, ...]
    first_ns: int
    last_ns: int
    _union: Union
    background: tuple[Background, ...] = ()
    untold: frozenset[Stage] = frozenset()
    _in_tools: Intervals | None = None  # when a stage of a process stood still

    def slices(self, first_ns: int, last_ns: int) -> Iterator[tuple[int, int, Intervals]]:
        """`(from_ns, to_ns, intervals)`: slices of time, the last first, which together cover the
        time asked for. The intervals (group: the stage's code) are the union of each stage over all
        processes as far as it overlaps the slice; they may reach beyond."""
        found = self._union.slices(first_ns, last_ns)
        yield from mapped(lambda one: self._united_pieces(*one), found)

    def of_processes(
        self, first_ns: int, last_ns: int
    ) -> Iterator[tuple[int, int, Ints, Intervals]]:
        """The same before processes are united: `(from_ns, to_ns, processes, intervals)`, where a
        process, a number for each interval, may have several that overlap."""
        found = self._union.slices(first_ns, last_ns)
        yield from mapped(lambda one: self._pieces(*one), found)

    def _united_pieces(
        self, start: int, end: int, intervals: Intervals
    ) -> tuple[int, int, Intervals]:
        return start, end, union_of(self._pieces(start, end, intervals)[-1])

    def _pieces(
        self, start: int, end: int, intervals: Intervals
    ) -> tuple[int, int, Ints, Intervals]:
        working = intervals.take(intervals.group % _CODES != Stage.STEP)
        pieces = innermost(working, working.group // _CODES)
        if self._in_tools is not None and len(self._in_tools):
            now = (self._in_tools.start < end) & (self._in_tools.end > start)
            pieces = without(pieces, self._in_tools.take(now))
        stage, process = pieces.group % _CODES, pieces.group // _CODES
        of_stage = Intervals(stage, pieces.start, pieces.end, pieces.lane, pieces.one_lane)
        return start, end, process, of_stage


def read_activity(run: Run) -> Activity:
    """Reads the spans of `run` once, in chunks."""
    counts = run.ask("select stage, process, spans from span_stages")
    spans_of_stage: dict[Stage, int] = {}
    spans_of_process: dict[int, int] = {}
    processes: dict[Stage, int] = {}
    pairs = [(stage_of(code), process) for code, process, _ in counts]
    # Who works on no sample, and when all of a process are in their tools, takes all samples.
    whole = not only_some(run.meta)
    background = find_background(run, pairs) if whole else ()
    for code, process, n in counts:
        stage = stage_of(code)
        spans_of_process[process] = spans_of_process.get(process, 0) + n
        if Background(stage, process) in background:
            continue
        spans_of_stage[stage] = spans_of_stage.get(stage, 0) + n
        processes[stage] = processes.get(stage, 0) + 1
    trainers = {process for code, process, _ in counts if stage_of(code) is Stage.TRAIN}
    from_tables = []
    for stage, table in TABLE_OF.items():
        if stage not in spans_of_stage:
            query = f"select count(distinct process) from {_timed_rows(table)}"
            processes[stage] = run.ask(query)[0][0]
            from_tables += [stage] if processes[stage] else []
    last_sign = _last_signs(run)
    union = _united(run, tuple(from_tables), last_sign, background)
    first_ns, last_ns = union.bounds()
    return Activity(
        spans_of_stage=spans_of_stage,
        spans_of_process=spans_of_process,
        processes_of_stage=processes,
        by_trainers=frozenset(stage_of(c) for c, process, _ in counts if process in trainers),
        from_tables=tuple(from_tables),
        open_spans=_open_spans(run, last_sign),
        first_ns=first_ns,
        last_ns=last_ns,
        _union=union,
        background=background,
        untold=untold_stages_of(run, pairs),
        _in_tools=_standing_still(run) if whole else None,
    )


def _standing_still(run: Run) -> Intervals:
    """Generation around samples that are all in their tools."""
    idle = all_in_tools(run)
    return replace(idle, group=idle.group * _CODES + Stage.ROLLOUT)


def activity_of(
    start: Ints,
    end: Ints,
    stage: Ints,
    process: Ints,
    lane: Ints,
    spans: Mapping[tuple[Stage, int], int],
    from_tables: tuple[Stage, ...],
    untold: frozenset[Stage] = frozenset(),
) -> Activity:
    """The activity of rows that are at hand, in any order, each with an end. `spans` is how many
    of a stage a process has recorded, here or before; rows of stages `from_tables` are no spans."""
    order = np.argsort(start, kind="stable")
    rows = _Rows(_mixed_of(stage, process, lane))
    rows.add(*(column[order] for column in (start, end, stage, process, lane)))
    union = rows.union()
    first_ns, last_ns = union.bounds()
    of_stage: Counter[Stage] = Counter()
    of_process: Counter[int] = Counter()
    for (which, one), n in spans.items():
        of_stage[which] += n
        of_process[one] += n
    users = Counter(which for which, _ in spans)
    trainers = {one for which, one in spans if which is Stage.TRAIN}
    return Activity(
        spans_of_stage=dict(of_stage),
        spans_of_process=dict(of_process),
        processes_of_stage=dict(users),
        by_trainers=frozenset(which for which, one in spans if one in trainers),
        from_tables=from_tables,
        open_spans=(),
        first_ns=first_ns,
        last_ns=last_ns,
        _union=union,
        untold=untold,
    )


def _timed_rows(table: str) -> str:
    """A row without length is an event: it says nothing of how long its stage took."""
    return f"raw_{table} where start_ns > 0 and end_ns > start_ns"


def _last_signs(run: Run) -> dict[int, int]:
    """By process that has an open span, the last start or end of any of its spans."""
    return dict(
        run.ask(
            "select process, max(greatest(start_ns, end_ns)) from raw_spans where process in "
            "(select process from span_stages where open > 0) "
            "group by process"
        )
    )


def _united(
    run: Run,
    from_tables: tuple[Stage, ...],
    last_sign: dict[int, int],
    background: tuple[Background, ...],
) -> Union:
    spans = "select start_ns, end_ns, stage, process, lane from raw_spans where start_ns > 0"
    for one in background:
        spans += f" and not (stage = {int(one.stage)} and process = {one.process})"
    rows = [
        f"select start_ns, end_ns, {int(stage)}::tinyint, process, 0::bigint "
        f"from {_timed_rows(TABLE_OF[stage])}"
        for stage in from_tables
    ]
    query = " union all ".join([spans, *rows])
    signs = np.zeros(max(last_sign, default=0) + 1, np.int64)
    for process, moment in last_sign.items():
        signs[process] = moment
    mixed = np.array(run.ask(_MIXED), np.int64).ravel()
    try:
        return _union_of_rows(run, query, signs, mixed)
    except OutOfOrder:  # a compacted run is in order, and so is one process
        return _union_of_rows(run, f"from ({query}) order by start_ns", signs, mixed)


_MIXED = f"""
    select process from (
        select process, lane, bit_count(bit_or(
            1::int << case when stage between 0 and {int(Stage.STEP)} then stage
                           else {_CODES - 1} end)) > 1 as several
        from raw_spans where start_ns > 0 and stage <> {int(Stage.STEP)} and process in (
            select process from span_stages where stage <> {int(Stage.STEP)} group by process
            having count(*) > 1 and min(first_lane) < max(last_lane))
        group by process, lane)
    group by process having count(*) > 1 and bool_or(several)"""


def _mixed_of(stage: Ints, process: Ints, lane: Ints) -> Ints:
    """Processes in which stages may nest in one of several lanes."""
    process, lane, stage = (column[stage != Stage.STEP] for column in (process, lane, stage))
    found, stages = np.unique(process[numbered(process, lane, stage)[1]], return_counts=True)
    lanes = np.unique(process[numbered(process, lane)[1]], return_counts=True)[1]
    return found[(lanes > 1) & (stages > lanes)]


class _Rows:
    """Takes rows in the order of their start to the union of each process and stage. Where stages
    may nest in one of several lanes, as in the tasks of an agent loop, each lane is looked at by
    itself first: what a task does within another task's time says nothing of that."""

    def __init__(self, mixed: Ints) -> None:
        self._mixed = mixed
        self._union, self._nested = Union(), Nested()
        self._process = np.arange((int(mixed.max(initial=-1)) + 1) * _CODES) // _CODES

    def add(self, start: Ints, end: Ints, stage: Ints, process: Ints, lane: Ints) -> None:
        """Takes more rows in. Errors: `OutOfOrder`."""
        rows = _grouped(start, end, stage, process, lane)
        if len(self._mixed) and len(rows):
            nests = np.isin(process, self._mixed) & (stage != Stage.STEP)
            reached = int(rows.start.max())
            pieces = self._nested.add(rows.take(nests), self._process, reached)
            rows = joined([rows.take(~nests), pieces])
            rows = rows.take(np.argsort(rows.start, kind="stable"))
        self._union.add(rows)

    def union(self) -> Union:
        """The union of all rows."""
        rest = self._nested.rest(self._process)
        self._union.add(rest.take(np.argsort(rest.start, kind="stable")))
        return self._union


def _union_of_rows(run: Run, query: str, last_sign: Ints, mixed: Ints) -> Union:
    rows = _Rows(mixed)
    for batch in pa.RecordBatchReader.from_stream(run.sql(query)):
        start, end, stage, process, lane = (column.to_numpy() for column in batch.columns)
        is_open = end < 0
        if is_open.any():
            end = end.copy()
            end[is_open] = last_sign[process[is_open]]
        rows.add(start, end, stage, process, lane)
    return rows.union()


def _grouped(start: Ints, end: Ints, stage: Ints, process: Ints, lane: Ints) -> Intervals:
    group = process.astype(np.int64) * _CODES + np.where(
        (stage < 0) | (stage > Stage.STEP), Stage.OTHER, stage
    )
    return of_spans(group, start, end, lane)


def _open_spans(run: Run, last_sign: dict[int, int]) -> tuple[OpenSpan, ...]:
    if not last_sign:
        return ()
    rows = run.ask(
        "select coalesce(text, '?'), stage, process, start_ns from raw_spans "
        "left join names on names.id = name where start_ns > 0 and end_ns < 0 order by start_ns"
    )
    return tuple(
        OpenSpan(name, stage_of(code), process, start, last_sign[process])
        for name, code, process, start in rows
    )


# --- when all samples of a process are in their tools: then nothing is generated there
# A span of generation around a whole batch lasts while each sample, in a task or thread of its own,
# waits for its tools. What a lane does says nothing of another lane, so the tools cannot be cut out
# of that span; but of a process that records its samples and their tools, it is known when none of
# them is left to be decoded.

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
