"""When each process was in which stage, in one pass over the spans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rltrace.analysis.timeline.interval_lookup import TIMED, columns, numbered
from rltrace.analysis.timeline.intervals import (
    Bools,
    Intervals,
    Ints,
    Nested,
    OutOfOrder,
    Union,
    innermost,
    joined,
    mapped,
    merged,
    of_spans,
    overlaid,
    union,
    without,
)
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Stage, stage_of

_SQL = packaged_toml("analysis/data/queries.toml")
CODES = 16  # a group is `process * CODES + stage`
_PLACES = 2 * CODES  # here `process * _PLACES + stage`, plus CODES in the lane of the steps


def is_evaluation(group: Ints) -> Bools:
    """Whose work is an evaluation's, whatever stage it is of."""
    return np.asarray(group % CODES == Stage.EVAL)


TABLE_OF = {Stage.ROLLOUT: "trajectories", Stage.REWARD: "rewards", Stage.SYNC: "syncs"}
"""The table whose rows are the work of a stage, where it has no spans."""

Background = tuple[tuple[Stage, int], ...]
"""Stages, each with a process that is in it for its own sake."""


@dataclass(frozen=True)
class OpenSpan:
    """A span that did not end; its process is known to have lived until `last_sign_ns`."""

    name: str
    stage: Stage
    process: int
    start_ns: int
    last_sign_ns: int


@dataclass(frozen=True)
class Activity:
    """Who was in which stage when. An instant of a lane belongs to the innermost span, and none is
    generation in a process whose samples are all in their tools, or training in a rank that waits
    for others; an open span lasts until its process's last sign. `first_ns` and `last_ns` bound
    everything (0: nothing). Stages `from_tables` have no spans; those `by_trainers` ran where
    training did, too. What is in the `background` counts as a process, and in no stage."""

    spans_of_stage: dict[Stage, int]
    spans_of_process: dict[int, int]
    processes_of_stage: dict[Stage, int]
    by_trainers: frozenset[Stage]
    from_tables: tuple[Stage, ...]
    open_spans: tuple[OpenSpan, ...]
    first_ns: int
    last_ns: int
    _union: Union
    background: Background = ()
    _still: Intervals | None = None  # when a stage of a process stood still

    def slices(self, first_ns: int, last_ns: int) -> Iterator[tuple[int, int, Intervals]]:
        """`(from_ns, to_ns, intervals)`: slices of time, the last first, which together cover the
        time asked for, with the union over all processes of each stage (group) that overlaps the
        slice, whole."""
        return self._united(first_ns, last_ns, CODES)

    def by_place(self, first_ns: int, last_ns: int) -> Iterator[tuple[int, int, Intervals]]:
        """The same, but a stage of the lane that opens the steps is a group of its own, beyond
        `CODES`."""
        return self._united(first_ns, last_ns, _PLACES)

    def _united(self, since: int, until: int, codes: int) -> Iterator[tuple[int, int, Intervals]]:
        found = self._union.slices(since, until)
        yield from mapped(lambda one: (*one[:2], union(self._pieces(*one, codes)[-1])), found)

    def of_processes(self, since: int, until: int) -> Iterator[tuple[int, int, Ints, Intervals]]:
        """The same before processes are united: `(from_ns, to_ns, processes, intervals)`, where a
        process, a number for each interval, may have several that overlap."""
        found = self._union.slices(since, until)
        yield from mapped(lambda one: (*one[:2], *self._pieces(*one, CODES)), found)

    def _pieces(
        self, start: int, end: int, intervals: Intervals, codes: int
    ) -> tuple[Ints, Intervals]:
        """The process of each interval, and the interval with its stage as its group."""
        working = intervals.take(intervals.group % CODES != Stage.STEP)
        pieces = innermost(working, working.group // _PLACES, is_evaluation(working.group))
        if self._still is not None and len(self._still):
            now = (self._still.start < end) & (self._still.end > start)
            pieces = without(pieces, self._still.take(now))
        return pieces.group // _PLACES, replace(pieces, group=pieces.group % codes)


def read_activity(run: OpenedRun) -> Activity:
    spans: Counter[tuple[Stage, int]] = Counter()
    lanes = columns(run, "select stage, process, first_lane, last_lane, spans from span_stages")
    for code, process, n in zip(*(lanes[i].tolist() for i in (0, 1, 4)), strict=True):
        spans[stage_of(code), process] += n
    background = find_background(run, spans)
    seen = {stage for stage, _ in spans.keys() - set(background)}
    count = "select count(distinct process) from"
    owners = {
        stage: run.ask(f"{count} raw_{table} where {TIMED}")[0][0]
        for stage, table in TABLE_OF.items()
        if stage not in seen
    }
    from_tables = tuple(stage for stage, processes in owners.items() if processes)
    last_sign = dict(run.ask(_SQL["last_signs"]))
    union = _united(run, from_tables, last_sign, background)
    found = _activity(union, spans, from_tables, _by_trainers(*lanes[:4]), background)
    idle = all_in_tools(run)
    idle = replace(idle, group=idle.group * CODES + Stage.ROLLOUT)
    still = joined([idle, waits_for_ranks(run, lanes)])
    process, stage = still.group // CODES, still.group % CODES
    both = [replace(still, group=process * _PLACES + stage + place) for place in (0, CODES)]
    return replace(
        found,
        processes_of_stage=found.processes_of_stage | owners,
        open_spans=tuple(
            OpenSpan(name, stage_of(code), process, start, last_sign[process])
            for name, code, process, start in (run.ask(_SQL["open_spans"]) if last_sign else ())
        ),
        _still=joined(both),
    )


def activity_of(
    start: Ints,
    end: Ints,
    stage: Ints,
    process: Ints,
    lane: Ints,
    spans: Mapping[tuple[Stage, int], int],
    from_tables: tuple[Stage, ...],
) -> Activity:
    """The activity of rows in any order, each with an end. `spans` is how many of a stage a process
    has recorded, here or before; rows of stages `from_tables` are no spans."""
    order = np.argsort(start, kind="stable")
    is_step = stage == Stage.STEP
    rows = _Rows(_mixed_of(stage, process, lane), [process[is_step], lane[is_step]])
    rows.add(*(column[order] for column in (start, end, stage, process, lane)))
    return _activity(rows.union(), spans, from_tables, _by_trainers(stage, process, lane, lane))


def _activity(
    union: Union,
    spans: Mapping[tuple[Stage, int], int],
    from_tables: tuple[Stage, ...],
    by_trainers: frozenset[Stage],
    background: Background = (),
) -> Activity:
    of_stage, of_process, processes = Counter[Stage](), Counter[int](), Counter[Stage]()
    for (stage, process), n in spans.items():
        of_process[process] += n
        if (stage, process) not in background:
            of_stage[stage] += n
            processes[stage] += 1
    first_ns, last_ns = union.bounds()
    return Activity(
        spans_of_stage=dict(of_stage), spans_of_process=dict(of_process),
        processes_of_stage=dict(processes), by_trainers=by_trainers, from_tables=from_tables,
        open_spans=(), first_ns=first_ns, last_ns=last_ns, _union=union, background=background,
    )  # fmt: skip


def _by_trainers(stage: Ints, process: Ints, first_lane: Ints, last_lane: Ints) -> frozenset[Stage]:
    """Stages that may have run in a lane that trains, as an evaluation in another thread."""
    keys, which = np.unique(process * CODES + stage, return_inverse=True)
    first, last = np.full((2, len(keys)), np.iinfo(np.int64).max) * [[1], [-1]]
    np.minimum.at(first, which, first_lane)
    np.maximum.at(last, which, last_lane)
    at = np.searchsorted(keys, keys // CODES * CODES + Stage.TRAIN).clip(max=len(keys) - 1)
    trains = keys[at] == keys // CODES * CODES + Stage.TRAIN
    shared = trains & (first <= last[at]) & (last >= first[at])
    return frozenset(stage_of(code) for code in np.unique(keys[shared] % CODES).tolist())


def _united(
    run: OpenedRun, from_tables: Iterable[Stage], last_sign: dict[int, int], background: Background
) -> Union:
    spans = "select start_ns, end_ns, stage, process, lane from raw_spans where start_ns > 0"
    for stage, process in background:
        spans += f" and not (stage = {int(stage)} and process = {process})"
    query = spans
    for stage in from_tables:
        figures = f"start_ns, end_ns, {int(stage)}::tinyint, process, 0::bigint"
        query += f" union all select {figures} from raw_{TABLE_OF[stage]} where {TIMED}"
    signs = np.zeros(max(last_sign, default=0) + 1, np.int64)
    signs[list(last_sign)] = list(last_sign.values())
    asked = _SQL["mixed"].format(step=int(Stage.STEP), other=CODES - 1)
    mixed = np.array(run.ask(asked), np.int64).ravel()
    own = columns(run, _SQL["lanes_of_steps"].format(Stage=Stage))
    own = [] if run.meta.get("imported") else own  # a log's lanes are no threads
    try:
        return _union_of_rows(run, query, signs, mixed, own)
    except OutOfOrder:  # a compacted run is in order, and so is one process
        return _union_of_rows(run, f"from ({query}) order by start_ns", signs, mixed, own)


def _mixed_of(stage: Ints, process: Ints, lane: Ints) -> Ints:
    """What the query `mixed` finds, in rows at hand."""
    process, lane, stage = (column[stage != Stage.STEP] for column in (process, lane, stage))
    found, stages = np.unique(process[numbered(process, lane, stage)[1]], return_counts=True)
    lanes = np.unique(process[numbered(process, lane)[1]], return_counts=True)[1]
    return found[(lanes > 1) & (stages > lanes)]


class _Rows:
    """Takes rows in the order of their start to the union of each process and stage. Where stages
    may nest in one of several lanes each lane is looked at by itself first."""

    def __init__(self, mixed: Ints, own: list[Ints]) -> None:
        self._mixed = mixed
        self._own = {one: own[1][own[0] == one] for one in (np.unique(own[0]) if own else ())}
        self._union, self._nested = Union(), Nested()
        groups = np.arange((int(mixed.max(initial=-1)) + 1) * _PLACES)
        self._of = groups // _PLACES, is_evaluation(groups)

    def add(self, start: Ints, end: Ints, stage: Ints, process: Ints, lane: Ints) -> None:
        """Errors: `OutOfOrder`."""
        known = np.where((stage < 0) | (stage > Stage.STEP), Stage.OTHER, stage)
        group = process.astype(np.int64) * _PLACES + known
        for one, lanes in self._own.items():
            group += CODES * ((process == one) & np.isin(lane, np.unique(lanes)))
        rows = of_spans(group, start, end, lane)
        if len(self._mixed) and len(rows):
            nests = np.isin(process, self._mixed) & (stage != Stage.STEP)
            reached = int(rows.start.max())
            pieces = self._nested.add(rows.take(nests), *self._of, reached)
            rows = joined([rows.take(~nests), pieces])
            rows = rows.take(np.argsort(rows.start, kind="stable"))
        self._union.add(rows)

    def union(self) -> Union:
        rest = self._nested.rest(*self._of)
        self._union.add(rest.take(np.argsort(rest.start, kind="stable")))
        return self._union


def _union_of_rows(
    run: OpenedRun, query: str, last_sign: Ints, mixed: Ints, own: list[Ints]
) -> Union:
    rows = _Rows(mixed, own)
    for start, end, stage, process, lane in run.ask_batches(query):
        is_open, until = end < 0, end.copy()
        until[is_open] = last_sign[process[is_open]]
        rows.add(start, until, stage, process, lane)
    return rows.union()


# --- when all samples of a process are in their tools: then nothing is generated there
# A span of generation around a whole batch lasts while each sample, in a task of its own, waits for
# its tools, which cannot be cut out of the span of another lane. But of a process that records its
# samples and their tools, it is known when none of them is left to be decoded.

_AS_SAID = 1.1  # times what the samples say of their tools; what takes longer is of others, too


def all_in_tools(run: OpenedRun) -> Intervals:
    """When as many tools run as samples are under way, of processes (the group) that generate."""
    stages = int(Stage.ENV), int(Stage.ROLLOUT)
    of_both = f"select process from span_stages where stage in {stages} group by process"
    found = run.ask(f"{of_both} having count(*) = 2")
    if not found:
        return joined([])
    both = ", ".join(str(process) for (process,) in found)
    mine = f"where {TIMED} and process in ({both})"
    spans = f"select process, lane, start_ns, end_ns from raw_spans {mine}"
    samples = f"select process, start_ns, end_ns, env_ns from raw_trajectories {mine}"
    owner, lane, start, end = columns(run, f"{spans} and stage = {int(Stage.ENV)}")
    process, begin, over, said = columns(run, samples)
    number, first = numbered(owner, lane)
    tools = union(of_spans(number, start, end))
    owner = owner[first][tools.group]
    trusted = _trusted(owner, tools, process, said)
    own = of_spans(process, begin, over).take(np.isin(process, trusted))
    theirs = replace(tools, group=owner).take(np.isin(owner, trusted))
    pieces, (decoded, running) = overlaid(own, theirs)
    return union(pieces.take((decoded > 0) & (running >= decoded)))


def _trusted(owner: Ints, tools: Intervals, process: Ints, said: Ints) -> Ints:
    """Processes whose spans of tools are those of its samples, as far as these tell."""
    found = np.unique(owner)
    took = np.bincount(np.searchsorted(found, owner), tools.end - tools.start, len(found))
    known = np.isin(process, found) & (said > 0)
    told = np.bincount(np.searchsorted(found, process[known]), said[known], len(found))
    return np.asarray(found[(told == 0) | (took <= _AS_SAID * told)])


# --- when a rank waits in a collective for one that is not there yet
# All ranks leave a collective together, so the last to come holds up the others, which only wait
# until it is there.


def waits_for_ranks(run: OpenedRun, lanes: Sequence[Ints]) -> Intervals:
    """When ranks were in a stage (the group: `process * CODES + stage`) before the last of them.
    The n-th calls of a step are one of all ranks that train, where these end together."""
    if len(np.unique(lanes[1][lanes[0] == Stage.TRAIN])) < 2:
        return joined([])
    return union(of_spans(*columns(run, _SQL["waits_for_ranks"].format(Stage=Stage, codes=CODES))))


# --- processes that are in a stage for their own sake: an audit of old verdicts, say
# Beside such a process all others seem hidden. Who works on samples is in the stage while one waits
# for it. So a process without rows of its own that is in the stage nearly all the rest of the time,
# too, contributes to no step. Where some sample waits at all times that cannot be told, and nobody
# is left out.

_LEAST_REST = 0.1  # of the time from the first sample to the last: less tells nothing
_NEARLY_ALL = 0.9  # of the rest; a verifier at work on samples is in its stage for none of it
_TOLD = 0.9  # of the samples have to say until when they waited

# Since and until when a sample is the stage's.
_WAITED = {
    Stage.ROLLOUT: "begun_ns, ended_ns",
    Stage.REWARD: "ended_ns, coalesce(greatest(judged_ns, ended_ns), 0)",
}


def find_background(run: OpenedRun, seen: Collection[tuple[Stage, int]]) -> Background:
    """Who of the processes `seen` with spans in a stage is there in the background."""
    found = []
    for stage in _WAITED:
        rows = run.ask(f"select process from event_rows where of_table = '{TABLE_OF[stage]}'")
        at_work = {process for (process,) in rows}
        asked = {one for of, one in seen if of is stage and one not in at_work}
        rest = _rest(run, stage) if asked and at_work else None
        if rest is None:
            continue
        least_ns = int(_NEARLY_ALL * (rest.end - rest.start).sum())
        rows = run.ask(_SQL["long_in_stage"].format(stage=stage, least_ns=least_ns))
        for process in sorted(asked.intersection(process for (process,) in rows)):
            spans = _spans(run, stage, process)
            inside = spans.until(rest.end) - spans.until(rest.start)
            if inside.sum() >= least_ns:
                found.append((stage, process))
    return tuple(found)


def _rest(run: OpenedRun, stage: Stage) -> Intervals | None:
    """When no sample was the stage's, from first to last; None: unknown, or too little of it."""
    query = _SQL["waited"].format(since_and_until=_WAITED[stage])
    first, since, until = columns(run, query)
    known = until > since  # else clocks out of order, or a verdict that was put where it ends
    if not len(since) or known.mean() < _TOLD:
        return None
    waited = merged(since[known], until[known])
    start, end = np.append(first[0], waited.end[:-1]), waited.start
    rest = of_spans(np.zeros_like(start), start, end).take(end > start)
    whole = int(waited.end[-1]) - int(start[0])
    enough = len(rest) and (rest.end - rest.start).sum() >= _LEAST_REST * whole
    return rest if enough else None


def _spans(run: OpenedRun, stage: Stage, process: int) -> Intervals:
    """The union of a process's spans in a stage; an open one lasts to its last sign of life."""
    return merged(*columns(run, _SQL["spans_of_process"].format(stage=stage, process=process)))
