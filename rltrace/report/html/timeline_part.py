"""The timeline: every process and what it did, to be zoomed into, and its numbers by process."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.critical_path import PathSegment
from rltrace.analysis.devices import AGENT
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.report import units
from rltrace.report.html import parts
from rltrace.report.html.markup import tag
from rltrace.report.html.packing import Columns, narrow
from rltrace.report.html.slices import KINDS, SPAN, Ints, Slices, read_slices
from rltrace.report.layout import of_rank
from rltrace.trace.vocabulary import Stage, word

if TYPE_CHECKING:
    from rltrace.trace.processes import Process
    from rltrace.trace.run import Run

MOST_PATH = 20_000
"""More stretches of the critical path than this are drawn as that many."""

_TICKS = 1 << 28
_MOST_NAMES = 4_000
_PATH_UNKNOWN = len(Stage)
_ORDER = ("", "driver", "controller", "trainer", "learner")
_LATE = 9


def timeline_part(analysis: RunAnalysis) -> tuple[parts.Part, dict[str, Any], Columns]:
    """`(the part, what the page has to know of it, its columns)`."""
    title = "Timeline"
    since_ns, until_ns = analysis.drawn_ns
    if until_ns <= since_ns:
        why = parts.missing("Nothing that lasts was recorded.")
        return parts.part("timeline", title, title, why), {}, {}
    slices = read_slices(analysis.run, since_ns, until_ns)
    slices = _in_order_of_roles(slices, analysis.run)
    rows = lay_out(slices)
    about, columns = _data(analysis, slices, rows)
    stretches = analysis.drawn_path
    path = thinned(stretches, MOST_PATH)
    if path:
        columns |= _path_columns(path, since_ns, about["tick_ns"])
    shown = parts.picture(_picture(analysis, slices, bool(path)))
    said = [
        "Click on it, then turn the wheel to zoom and drag to move; or hold Ctrl and turn the "
        "wheel. Keys: arrows move, + and − zoom, 0 shows all, [ and ] go to the step before and "
        "the next, Esc leaves.",
        *_less(slices, stretches, path),
        "`rltrace timeline` writes all of it for ui.perfetto.dev, with arrows between samples.",
    ]
    return parts.part("timeline", title, title, shown, parts.notes(said)), about, columns


def _less(
    slices: Slices, path: Sequence[PathSegment], drawn: Sequence[PathSegment]
) -> Iterator[str]:
    """What is not drawn one by one, of the slices and of the critical path."""
    if slices.merged_below_ns:
        below = units.seconds(slices.merged_below_ns / 1e9)
        kept, all_ = units.count(len(slices)), units.count(slices.of)
        yield (
            f"Slices shorter than {below} are merged with neighbours of the same stage: {kept} are "
            f"drawn for {all_}. All other figures of this page are of all of them."
        )
    if len(drawn) < len(path):
        yield (
            f"The critical path has {units.count(len(path))} stretches and "
            f"{units.count(len(drawn))} are drawn: of neighbours the longest one stands for all."
        )


def _in_order_of_roles(slices: Slices, run: Run) -> Slices:
    """Processes numbered in the order in which they are shown."""
    number = np.zeros(1 + max((p.number for p in run.processes), default=0), np.int64)
    for place, process in enumerate(sorted(run.processes, key=_place)):
        number[process.number] = place
    return replace(slices, process=number[slices.process])


def _place(process: Process) -> tuple[int, str, int, int]:
    role = process.role or ""
    first = _ORDER.index(role) if role in _ORDER[1:] else _LATE - 1
    if role == AGENT or not role:
        first = _LATE
    return first, role, process.rank if process.rank is not None else -1, process.number


def _data(analysis: RunAnalysis, slices: Slices, rows: Rows) -> tuple[dict[str, Any], Columns]:
    """Times are counted in ticks since the first moment; a row's slices come one after the other,
    so that only the gap before each has to be told."""
    since_ns, until_ns = analysis.drawn_ns
    length = until_ns - since_ns
    tick = max(1000, length // _TICKS)
    start = (slices.start_ns[rows.order] - since_ns).clip(0) // tick
    end = np.maximum(start, (slices.end_ns[rows.order] - since_ns).clip(0) // tick)
    before = np.concatenate([[0], end[:-1]])
    before[rows.first[:-1]] = 0
    gap = (start - before).clip(0)
    ids, name = _named(slices.name[rows.order])
    texts = dict(analysis.run.ask("select id, text from names"))
    ranked = sorted(analysis.run.processes, key=_place)
    steps = analysis.steps.windows if not analysis.steps.whole_run else ()
    columns = {
        "gap": gap,
        "length": end - start,
        "name": name,
        "stage": slices.stage[rows.order],
        "count": slices.count[rows.order],
        "busy": np.where(slices.count > 1, slices.busy_ns // tick, 0)[rows.order],
        "step": slices.step[rows.order] + 1,
        "version": slices.version[rows.order] + 1,
        "tokens": slices.tokens[rows.order] + 1,
        "open": slices.is_open[rows.order],
        "stepStart": _ticks([w.start_ns for w in steps], since_ns, tick),
        "stepEnd": _ticks([w.end_ns for w in steps], since_ns, tick),
        "stepNumber": np.array([w.step + 1 for w in steps], np.int64),
    }
    about = {
        "tick_ns": int(tick),
        "ticks": int(length // tick),
        "stages": [word(stage) for stage in Stage],
        "kinds": list(KINDS),
        "names": ["", *(str(texts.get(one, "?")) for one in ids)],
        "processes": [_title(process) for process in ranked],
        "rows": [
            [int(p), int(k), int(n)]
            for p, k, n in zip(rows.process, rows.kind, np.diff(rows.first), strict=True)
        ],
    }
    return about, {column: narrow(values) for column, values in columns.items()}


def _ticks(moments: list[int], since_ns: int, tick: int) -> NDArray[np.int64]:
    return (np.array(moments, np.int64) - since_ns).clip(0) // tick


def _named(name: NDArray[np.int64]) -> tuple[list[int], NDArray[np.int64]]:
    """The ids of the names that the page has, the most frequent first, and for each slice its place
    among them from 1 on; 0: none, or one that is too rare where there are very many."""
    ids, where, count = np.unique(name, return_inverse=True, return_counts=True)
    frequent = [i for i in np.argsort(-count, kind="stable") if ids[i] >= 0][:_MOST_NAMES]
    place = np.zeros(len(ids), np.int64)
    place[frequent] = np.arange(1, len(frequent) + 1)
    return [int(ids[i]) for i in frequent], place[where.reshape(-1)]


def _title(process: Process) -> str:
    role = process.role or (f"child of {process.child_of}" if process.child_of else "process")
    return of_rank(role, process.rank)


def thinned(path: Sequence[PathSegment], most: int) -> list[PathSegment]:
    """A path of at most `most` stretches: where there are more, of those that begin in one equal
    part of the time the longest one stands for all of them."""
    if len(path) <= most:
        return list(path)
    first, last = path[0].start_ns, path[-1].end_ns
    width = max(1, -(-(last - first) // most))
    thin = []
    for _, alike in itertools.groupby(path, lambda s: min((s.start_ns - first) // width, most - 1)):
        stretches = list(alike)
        longest = max(stretches, key=lambda s: s.end_ns - s.start_ns)
        begin, end = stretches[0].start_ns, stretches[-1].end_ns
        thin.append(replace(longest, start_ns=begin, end_ns=end))
    return thin


def _path_columns(path: Sequence[PathSegment], since_ns: int, tick: int) -> Columns:
    stage = [_PATH_UNKNOWN if s.stage is None else int(s.stage) for s in path]
    return {
        "pathStart": narrow(_ticks([s.start_ns for s in path], since_ns, tick)),
        "pathEnd": narrow(_ticks([s.end_ns for s in path], since_ns, tick)),
        "pathStage": narrow(np.array(stage, np.int64)),
    }


def _picture(analysis: RunAnalysis, slices: Slices, has_path: bool) -> parts.Picture:
    stages = [word(Stage(code)) for code in np.unique(slices.stage) if code in set(Stage)]
    seen = [stage for stage in parts.COLOURED if stage in stages]
    rows = []
    for place, process in enumerate(sorted(analysis.run.processes, key=_place)):
        mine = slices.process == place
        if not mine.any():
            continue
        of_kind = [int(slices.count[mine & (slices.kind == kind)].sum()) for kind in range(4)]
        spans = mine & (slices.kind == SPAN)
        spent = [
            float(slices.busy_ns[spans & (slices.stage == Stage[s.upper()])].sum()) / 1e9
            for s in seen
        ]
        rows.append(
            (
                f"{_title(process)} (pid {process.pid} on {process.host})",
                *(units.count(n) if n else "" for n in of_kind),
                *(units.seconds(s) if s else "" for s in spent),
            )
        )
    what = "steps, the critical path, and " if has_path else "steps and "
    return parts.Picture(
        key="timeline-picture",
        title="Every process",
        says=f"From above: {what}a group of rows for each process: its spans by lane, then its "
        "trajectories, verdicts and weight updates."
        + ("" if analysis.overlap_known else parts.LAID_OUT),
        around=parts.stage_legend(seen),
        drawing=_frame(),
        is_tool=True,
        columns=("process", *KINDS, *(f"{stage}, added up" for stage in seen)),
        rows=rows,
    )


def _frame() -> Any:
    buttons = (
        tag("button", sign, type="button", data_do=do, aria_label=said, title=said)
        for sign, do, said in (
            ("−", "out", "zoom out"), ("+", "in", "zoom in"), ("all", "all", "show all"),
            ("‹ step", "before", "the step before"), ("step ›", "next", "the next step"),
        )
    )  # fmt: skip
    return tag(
        "div",
        tag("div", *buttons, tag("span", class_="range", aria_live="polite"), class_="chooser"),
        tag(
            "div",
            tag("canvas", tabindex="0", role="application",
                aria_label="Timeline. Arrow keys move, plus and minus zoom, 0 shows all."),
            tag("div", class_="spacer"),
            class_="rows",
        ),
        tag("p", "Point at a slice to see what it is.", class_="told", aria_live="polite"),
        tag("noscript", "The timeline is drawn by a script, which is switched off here."),
        class_="timeline",
        id="timeline-frame",
    )  # fmt: skip


# --- on which row of the timeline each slice is drawn, so that no two of a row overlap


@dataclass(frozen=True)
class Rows:
    """Slices in the order of their rows and then of time: `order` are their places in `Slices`,
    `first[i]` to `first[i + 1]` those of row i, which shows rows of `kind[i]` in `process[i]`."""

    order: Ints
    first: Ints
    process: Ints
    kind: Ints

    def __len__(self) -> int:
        return len(self.kind)


def lay_out(slices: Slices) -> Rows:
    """Rows by process and kind. Lanes (threads, tasks) that do not last at the same time share
    rows; within one, what lies within another is on the row below it."""
    rank = np.zeros(len(slices), np.int64)
    track = _tracks(slices)
    key = np.lexsort((track, slices.kind, slices.process))
    groups = _runs(slices.process[key], slices.kind[key], track[key])
    beneath: dict[tuple[int, int], int] = {}
    for begin, end in groups:
        members = key[begin:end]
        of = (int(slices.process[members[0]]), int(slices.kind[members[0]]))
        depth = stacked(slices.start_ns[members], slices.end_ns[members])
        rank[members] = depth + beneath.get(of, 0)
        beneath[of] = beneath.get(of, 0) + int(depth.max()) + 1
    order = np.lexsort((slices.start_ns, rank, slices.kind, slices.process))
    runs = _runs(slices.process[order], slices.kind[order], rank[order])
    first = np.array([begin for begin, _ in runs] + [len(order)], np.int64)
    heads = order[first[:-1]]
    return Rows(order, first, slices.process[heads], slices.kind[heads])


def _tracks(slices: Slices) -> Ints:
    """For each slice the track that its lane is on; lanes come and go by the thousand."""
    track = np.zeros(len(slices), np.int64)
    spans = np.flatnonzero(slices.kind == SPAN)
    if not len(spans):
        return track
    pairs = np.stack([slices.process[spans], slices.lane[spans]])
    lanes, lane = np.unique(pairs, axis=1, return_inverse=True)
    lane = lane.reshape(-1)
    first = np.full(lanes.shape[1], np.iinfo(np.int64).max)
    last = np.zeros(lanes.shape[1], np.int64)
    np.minimum.at(first, lane, slices.start_ns[spans])
    np.maximum.at(last, lane, slices.end_ns[spans])
    of_lane = np.zeros(lanes.shape[1], np.int64)
    for process in np.unique(lanes[0]):
        members = np.flatnonzero(lanes[0] == process)
        of_lane[members] = stacked(first[members], last[members])
    track[spans] = of_lane[lane]
    return track


def stacked(start: Ints, end: Ints) -> Ints:
    """For each interval the lowest row that is free when it begins, the longest of those that begin
    at once first: what lies within another comes to lie below it. An interval may begin where
    another ends; one of no length still takes its instant."""
    rows = np.zeros(len(start), np.int64)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    used = 0
    order = np.lexsort((-end, start))
    until = np.maximum(end, start + 1)
    for i, begins, ends in zip(order, start[order].tolist(), until[order].tolist(), strict=True):
        while busy and busy[0][0] <= begins:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row, used = used, used + 1
        heapq.heappush(busy, (ends, row))
        rows[i] = row
    return rows


def _runs(*keys: Ints) -> list[tuple[int, int]]:
    """Where runs of equal keys begin and end."""
    if not len(keys[0]):
        return []
    changes = np.zeros(len(keys[0]), np.bool_)
    changes[0] = True
    for key in keys:
        changes[1:] |= np.diff(key) != 0
    first = np.flatnonzero(changes).tolist()
    return list(zip(first, [*first[1:], len(keys[0])], strict=True))
