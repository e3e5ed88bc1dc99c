"""The spans of a run as slices: steps on top, the rest on the lanes of their processes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.report.perfetto.findings import Findings
from rltrace.report.perfetto.rows import Rows, pack_each, word_of
from rltrace.report.perfetto.scene import Scene, Slices
from rltrace.report.perfetto.tracks import Ints, nest, number, outer_first
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Phase, Stage

STEPS, PATH, VERSIONS, COUNTERS = range(4)
"""The order of what stands on top; next come the processes, whose rows have an order too."""

TITLES = ("steps", "critical path", "policy versions")
"""Of the tracks on top, without the counters."""

TRAJECTORIES, REWARDS, USES, UPDATES, PHASES, PROFILES = range(6)

_NOTED = ("step", "version", "tokens", "bytes", "items")
_COLUMNS = f"process, lane, start_ns, end_ns, name, stage, phase, {', '.join(_NOTED)}"
_IS_PHASE = f"(stage = {Stage.SYNC:d} AND phase <> -1)"


def steps(scene: Scene, run: Run, findings: Findings | None) -> Slices:
    """The learner's steps, on top of everything, with what the analysis says of them."""
    rows = Rows(scene, run, f"SELECT {_COLUMNS} FROM raw_spans WHERE stage = {Stage.STEP:d}")
    several = len(np.unique(rows["process"])) > 1

    def track(process: int, _row: int) -> int:
        name = f"steps of {scene.processes[process].name}" if several else TITLES[STEPS]
        return scene.row(None, name, STEPS)

    notes = rows.integers(*_NOTED)
    if findings is not None:
        notes += findings.notes(scene, rows["process"], rows.start)
    return rows.slices(
        track=scene.each(track, rows["process"], rows.packed()),
        name=scene.names.column(rows["step"], lambda n: "step" if n < 0 else f"step {n}"),
        category="step",
        notes=notes,
    )


def path(scene: Scene, findings: Findings | None) -> Slices:
    """The critical path: what the end of the run waited for, back to its start."""
    segments = () if findings is None else findings.path
    names = ("unknown" if s.stage is None else word_of(Stage, s.stage) for s in segments)
    track = scene.row(None, TITLES[PATH], PATH) if segments else 0
    where = [scene.processes[s.process].name if s.process >= 0 else "" for s in segments]
    return Slices(
        track=np.full(len(segments), track, np.int64),
        start=np.array([s.start_ns for s in segments], np.int64),
        end=np.array([s.end_ns for s in segments], np.int64),
        name=scene.names.all(names),
        category=np.full(len(segments), scene.categories.id("critical path"), np.int64),
        notes=(scene.told("because", [s.what for s in segments]), scene.told("process", where)),
    )


def spans(scene: Scene, run: Run, texts: dict[int, str]) -> Slices:
    """All other spans but the phases of weight updates: a track for each lane, and more for those
    that cross on it."""
    others = f"stage <> {Stage.STEP:d} AND NOT {_IS_PHASE}"
    rows = Rows(scene, run, f"SELECT {_COLUMNS} FROM raw_spans WHERE {others}")
    lane, first = number(rows["process"], rows["lane"])
    order = outer_first(rows.start, rows.end, lane)
    process = rows["process"][first]
    place = _pack_lanes(process, lane, rows, order)
    of_lane = scene.each(lambda p, k: scene.thread(p, f"lane {k + 1}"), process, place)
    track = of_lane[lane]
    extra = nest(lane, rows.start, rows.end, order)
    crossing = np.flatnonzero(extra)
    of_crossing = lane[crossing]
    keys = process[of_crossing], place[of_crossing], extra[crossing]
    track[crossing] = scene.each(lambda p, k, _: scene.row(p, f"lane {k + 1}, crossing"), *keys)
    return Slices(
        track=track,
        start=rows.start,
        end=rows.end,
        name=scene.names.column(rows["name"], lambda n: texts.get(n, "?")),
        category=scene.categories.column(rows["stage"], lambda code: word_of(Stage, code)),
        notes=(*rows.integers(*_NOTED), rows.code("phase", Phase)),
    )


def phases(scene: Scene, run: Run, texts: dict[int, str]) -> Slices:
    """The phases of weight updates, bucket by bucket where they were recorded so."""
    rows = Rows(scene, run, f"SELECT {_COLUMNS} FROM raw_spans WHERE {_IS_PHASE}")
    return rows.slices(
        track=rows.on_rows("phases of weight updates", PHASES),
        name=scene.names.column(rows["phase"], lambda code: word_of(Phase, code)),
        category="sync",
        notes=(*rows.integers(*_NOTED), rows.words("name", lambda n: texts.get(n, "?"))),
    )


def _pack_lanes(process: NDArray[Any], lane: Ints, rows: Rows, order: Ints) -> Ints:
    """For each lane its track in its process. Ids of threads and tasks are opaque and come and go
    by the thousand, so lanes that do not last at the same time share one."""
    begins = np.flatnonzero(np.diff(lane[order], prepend=-1))
    if not len(begins):
        return begins
    last = np.maximum.reduceat(rows.end[order], begins)
    return pack_each(process, rows.start[order[begins]], last)
