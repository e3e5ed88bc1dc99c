"""The rows of a run as slices: where each is drawn, what it is called, what is known about it."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.report.perfetto_scene import Note, Scene, Slices, number
from rltrace.report.perfetto_tracks import OPEN, Ints, nest, pack
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Fate, Finish, Outcome, Phase, Stage, SyncRole, Transport, word


def steps(scene: Scene, run: Run) -> Slices:
    """The learner's steps, on top of everything."""
    rows = _Rows(
        scene,
        run,
        "SELECT process, start_ns, end_ns, step, version, tokens, bytes, items FROM raw_spans "
        f"WHERE stage = {Stage.STEP:d}",
    )
    several = len(np.unique(rows["process"])) > 1

    def track(process: int, _row: int) -> int:
        name = f"steps of {scene.processes[process].name}" if several else "steps"
        return scene.row(None, name)

    return Slices(
        track=scene.each(track, rows["process"], rows.packed()),
        start=rows.start,
        end=rows.end,
        name=scene.names.column(rows["step"], lambda n: "step" if n < 0 else f"step {n}"),
        category=rows.all(scene.categories.id("step")),
        notes=rows.integers("step", "version", "tokens", "bytes", "items"),
    )


def spans(scene: Scene, run: Run, texts: dict[int, str]) -> Slices:
    """All other spans: a track for each lane, and more for those that cross on it."""
    rows = _Rows(
        scene,
        run,
        "SELECT process, lane, start_ns, end_ns, name, stage, phase, step, version, tokens, bytes, "
        f"items FROM raw_spans WHERE stage <> {Stage.STEP:d}",
    )
    lane, _ = number(rows["process"], rows["lane"])
    track_of_lane = _pack_lanes(lane, rows)

    def track(process: int, lane: int, extra: int) -> int:
        name = f"lane {lane + 1}"
        return scene.row(process, f"{name}, crossing") if extra else scene.thread(process, name)

    return Slices(
        track=scene.each(
            track, rows["process"], track_of_lane[lane], nest(lane, rows.start, rows.end)
        ),
        start=rows.start,
        end=rows.end,
        name=scene.names.column(rows["name"], lambda n: texts.get(n, "?")),
        category=scene.categories.column(rows["stage"], lambda code: _word(Stage, code)),
        notes=(
            *rows.integers("step", "version", "tokens", "bytes", "items"),
            rows.code("phase", Phase),
        ),
    )


def _pack_lanes(lane: Ints, rows: _Rows) -> Ints:
    """For each lane its track in its process. Ids of threads and tasks are opaque and come and go
    by the thousand, so lanes that do not last at the same time share one."""
    count = int(lane.max()) + 1 if len(lane) else 0
    process, first, last = (np.zeros(count, np.int64) for _ in range(3))
    process[lane] = rows["process"]
    first[:] = OPEN
    np.minimum.at(first, lane, rows.start)
    np.maximum.at(last, lane, rows.end)
    return _pack_each(process, first, last)


def trajectories(scene: Scene, run: Run) -> Slices:
    """Samples being generated, named by the policy versions that wrote them."""
    rows = _Rows(
        scene,
        run,
        'SELECT process, start_ns, end_ns, trajectory, "group", prompt, first_version, '
        "last_version, prompt_tokens, response_tokens, turns, env_ns, preemptions, finish, "
        "CASE WHEN first_token_ns = -1 THEN -1 ELSE first_token_ns - start_ns END "
        "AS to_first_token_ns FROM raw_trajectories",
    )
    versions, first = number(rows["first_version"], rows["last_version"])

    def name(nth: int) -> str:
        row = first[nth]
        return _version_name(int(rows["first_version"][row]), int(rows["last_version"][row]))

    return Slices(
        track=rows.on_rows("trajectories"),
        start=rows.start,
        end=rows.end,
        name=scene.names.column(versions, name),
        category=rows.all(scene.categories.id("trajectory")),
        notes=(
            *rows.integers("trajectory", "group", "prompt", "first_version", "last_version"),
            *rows.integers("prompt_tokens", "response_tokens", "turns", "env_ns", "preemptions"),
            *rows.integers("to_first_token_ns"),
            rows.code("finish", Finish),
        ),
        flow=_flow(run, rows["trajectory"]),
    )


def _version_name(first: int, last: int) -> str:
    if first < 0:
        return "trajectory"
    return f"trajectory v{first}" if last in (first, -1) else f"trajectory v{first} to v{last}"


def rewards(scene: Scene, run: Run, texts: dict[int, str]) -> Slices:
    """Verdicts being reached."""
    rows = _Rows(
        scene,
        run,
        "SELECT process, start_ns, end_ns, trajectory, component, value, outcome FROM raw_rewards",
    )
    return Slices(
        track=rows.on_rows("rewards"),
        start=rows.start,
        end=rows.end,
        name=scene.names.column(rows["component"], lambda n: texts.get(n, "reward")),
        category=rows.all(scene.categories.id("verdict")),
        notes=(
            *rows.integers("trajectory"),
            rows.double("value"),
            rows.code("outcome", Outcome),
        ),
    )


def syncs(scene: Scene, run: Run) -> Slices:
    """Every participant's part in every weight update."""
    rows = _Rows(
        scene,
        run,
        "SELECT process, start_ns, end_ns, version, role, stall_ns, bytes, wire_bytes, buckets, "
        "transport FROM raw_syncs",
    )
    return Slices(
        track=rows.on_rows("weight updates"),
        start=rows.start,
        end=rows.end,
        name=scene.names.column(rows["version"], lambda n: "weights" if n < 0 else f"weights v{n}"),
        category=rows.all(scene.categories.id("weight update")),
        notes=(
            *rows.integers("version", "stall_ns", "bytes", "wire_bytes", "buckets"),
            rows.code("role", SyncRole),
            rows.code("transport", Transport),
        ),
    )


def uses(scene: Scene, run: Run) -> Slices:
    """The moments at which the learner took or dropped a sample; arrows lead to them."""
    rows = _Rows(
        scene,
        run,
        "SELECT process, time_ns AS start_ns, time_ns AS end_ns, trajectory, step, version, fate, "
        "tokens FROM raw_uses",
    )
    return Slices(
        track=scene.each(lambda process: scene.row(process, "samples used"), rows["process"]),
        start=rows.start,
        end=rows.end,
        name=scene.names.column(rows["fate"], lambda code: _word(Fate, code)),
        category=rows.all(scene.categories.id("use")),
        notes=rows.integers("trajectory", "step", "version", "tokens"),
        flow=_flow(run, rows["trajectory"]),
        moments=True,
    )


class _Rows:
    """The columns of one query."""

    def __init__(self, scene: Scene, run: Run, query: str) -> None:
        self._scene = scene
        self._columns: dict[str, NDArray[Any]] = run.sql(query).fetchnumpy()
        self.start = self["start_ns"]
        end = self["end_ns"]
        self.end = np.where(end < 0, OPEN, np.maximum(end, self.start))

    def __getitem__(self, column: str) -> Ints:
        return np.asarray(self._columns[column]).astype(np.int64, copy=False)

    def all(self, value: int) -> Ints:
        """One value for every row."""
        return np.full(len(self.start), value, np.int64)

    def packed(self) -> Ints:
        """A row number for each slice, so that within a process no two of a row overlap."""
        return _pack_each(self["process"], self.start, self.end)

    def on_rows(self, name: str) -> Ints:
        """Tracks of one name in each process, as many as hold the slices without overlap."""
        return self._scene.each(
            lambda process, _row: self._scene.row(process, name), self["process"], self.packed()
        )

    def integers(self, *columns: str) -> tuple[Note, ...]:
        """Notes of integers, where they are known (not -1)."""
        return tuple(self._note(c, "integer", self[c], self[c] != -1) for c in columns)

    def double(self, column: str) -> Note:
        """Notes of a float, where it is known (not NaN)."""
        values = np.asarray(self._columns[column]).astype(np.float64, copy=False)
        return self._note(column, "double", values, ~np.isnan(values))

    def code(self, column: str, codes: type[IntEnum]) -> Note:
        """Notes of the vocabulary's words."""
        ids = self._scene.words.column(self[column], lambda code: _word(codes, code))
        return self._note(column, "word", ids, self[column] != -1)

    def _note(self, title: str, kind: str, values: NDArray[Any], known: NDArray[np.bool_]) -> Note:
        return Note(self._scene.titles.id(title), kind, values, known)


def _pack_each(process: Ints, start: Ints, end: Ints) -> Ints:
    """`pack` for each process on its own."""
    packed = np.zeros(len(process), np.int64)
    for one in np.unique(process):
        members = np.flatnonzero(process == one)
        packed[members] = pack(start[members], end[members])
    return packed


def _word(codes: type[IntEnum], code: int) -> str:
    # A code that a later version wrote is still worth showing.
    return word(codes(code)) if code in codes._value2member_map_ else f"code {code}"


def _flow(run: Run, trajectory: Ints) -> Ints:
    """The ids of those trajectories that the trace holds both the making and the use of; else 0."""
    joined = run.sql(
        "SELECT DISTINCT trajectory FROM raw_uses SEMI JOIN raw_trajectories USING (trajectory) "
        "WHERE trajectory <> -1"
    ).fetchnumpy()["trajectory"]
    return np.where(np.isin(trajectory, np.asarray(joined)), trajectory, 0)
