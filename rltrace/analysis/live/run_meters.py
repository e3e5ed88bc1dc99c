"""Meters of a run that goes on: stages, weight updates, samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from rltrace.analysis.live.followed_run import Watched
from rltrace.analysis.live.recent_rows import SPARING, each, ended, rows_of_stages
from rltrace.analysis.live.sample_meter import Histogram, bounds_of
from rltrace.analysis.timeline.intervals import (
    Intervals,
    Ints,
    between,
    innermost,
    joined,
    of_spans,
    union,
)
from rltrace.analysis.timeline.process_intervals import CODES, TABLE_OF, is_evaluation
from rltrace.trace.read.run_follower import Rows
from rltrace.trace.vocabulary import Stage, SyncRole, named, stage_of

_INTERVALS = ("spans", "trajectories", "rewards", "syncs")
_HELD_NS = 3 * 10**9  # what became of samples counts once the rows about them have been read
_LAST = 10


class RunMeters(Watched):
    """Follows the run in `path`, and is read again at each `look`. Errors: `RltraceError` when
    there is no run there. Beside the meters: `running`, the `(process, stage)` that are open;
    `in_flight`, how many trajectories are being generated, and `oldest_ns`, since when, or None."""

    def __init__(self, path: Path, lag_budget: float = math.inf) -> None:
        self.stages = StageMeter()
        self.weights = WeightMeter()
        super().__init__(path, lag_budget, SPARING)
        self.look()

    def look(self) -> None:
        complete = self.read(held_ns=_HELD_NS)
        opened = {table: self.follower.unfinished(table) for table in _INTERVALS}
        ends_ns = self.ends_ns(self.clock_ns, self.last_sign_ns, 0)
        self.stages.add(complete, opened, ends_ns, self.clock_ns)
        going_on = {table: self.going_on(table) for table in _INTERVALS}
        self.weights.add(complete, going_on)
        spans, trajectories = going_on["spans"], going_on["trajectories"]
        stages = each(spans, "process", "stage")
        self.running = {(of, Stage(code)) for of, code in stages if 0 <= code < Stage.STEP}
        ids = trajectories["trajectory"]
        self.in_flight = len(np.unique(ids[ids != -1])) + int((ids == -1).sum())
        self.oldest_ns = int(trajectories["start_ns"].min()) if len(trajectories) else None
        for kept in self.kept.values():
            kept.drop_before(self.clock_ns)  # the meters have taken it in

    @property
    def step_s(self) -> Histogram:
        lengths = Histogram(bounds_of("step_s"))
        lengths.add(window.length_s for window in self.steps.windows)
        return lengths

    @property
    def step(self) -> int | None:
        """The number of the newest step that has one, None before the first."""
        done = [(w.start_ns, w.step) for w in self.steps.windows]
        begun = [(start_ns, step) for step, start_ns in self.steps.in_progress]
        numbered = [(start_ns, step) for start_ns, step in (*done, *begun) if step >= 0]
        return max(numbered)[1] if numbered else None

    @property
    def step_since_ns(self) -> int | None:
        """When the step in progress began, None where there is none."""
        last_ns = self.steps.windows[-1].start_ns if self.steps.windows else 0
        begun = [start_ns for _, start_ns in self.steps.in_progress if start_ns >= last_ns]
        return None if self.job.is_over else max(begun, default=None)

    def waiting(self) -> int:
        """Trajectories that ended since the last steps began and that the learner has not met."""
        windows = self.steps.windows
        return self.samples.waiting(windows[-_LAST].start_ns if len(windows) >= _LAST else 0)


_VERSIONS = {"version", "first_version", "last_version"}


class WeightMeter:
    """By a participant's part (source, relay, sink): how long its part in one update took, and the
    bytes. `version` is the newest policy version that any process named, None before the first."""

    def __init__(self) -> None:
        self.seconds: dict[str, Histogram] = {}
        self.bytes: Counter[str] = Counter()
        self.version: int | None = None

    def add(self, complete: Mapping[str, Rows], opened: Mapping[str, Rows]) -> None:
        syncs = complete["syncs"]
        for role in np.unique(syncs["role"]):
            rows = syncs.where(syncs["role"] == role)
            part = named(SyncRole, int(role))
            length_s = np.maximum(rows["end_ns"] - rows["start_ns"], 0) / 1e9
            self.seconds.setdefault(part, Histogram(bounds_of("sync_s"))).add(length_s)
            moved = rows["bytes"][rows["bytes"] >= 0]
            if len(moved):
                self.bytes[part] += int(moved.sum())
        for rows in (*complete.values(), *opened.values()):
            for column in rows.columns.keys() & _VERSIONS if len(rows) else ():
                if (newest := int(rows[column].max())) >= 0:
                    self.version = max(newest, self.version or 0)


# --- the time of stages: the union of intervals, as everywhere. It is taken in slice by slice, from
# one look at the run to the next, with what is open counted as far as the look. A row may also be
# stored only after what it says has happened; it then adds what its stage had not been given yet.
# So times only grow: a span that is taken back keeps what it was given.

_REMEMBERED_NS = 3600 * 10**9  # a row that is stored later than this counts from here on
_LARGEST = 1 << 62


class StageMeter:
    """Nanoseconds by `(process, stage)` and by stage, up to the last look."""

    def __init__(self) -> None:
        self.by_process: dict[tuple[int, Stage], int] = {}
        self.by_stage: dict[Stage, int] = {}
        self._with_spans: set[Stage] = set()
        self._of_process = _Given()
        self._of_stage = _Given()
        self._looked_ns = -_LARGEST
        self._open_before: Ints = np.zeros(0, np.int64)

    def add(
        self, complete: dict[str, Rows], opened: dict[str, Rows], ends_ns: Ints, now_ns: int
    ) -> None:
        """Takes in the rows (by table) that became complete, and those that are `opened`, as far as
        `ends_ns` by process: the moment of this look, or the last sign of life."""
        for spans in (complete["spans"], opened["spans"]):
            self._with_spans |= {stage_of(code) for code in np.unique(spans["stage"]).tolist()}
        still_open = self._intervals(opened, ends_ns)
        rows = joined([self._intervals(complete, ends_ns), still_open])
        rows = rows.take(rows.end > rows.start)
        # What was open at the last look has been counted as far as that.
        late = (rows.start < self._looked_ns) & ~np.isin(_keys(rows), self._open_before)
        before = _innermost(rows.take(late), -_LARGEST, self._looked_ns)
        pieces = joined([before, _innermost(rows, self._looked_ns, _LARGEST)])
        oldest = self._looked_ns - _REMEMBERED_NS
        given = self._of_process.add(pieces, oldest)
        self.by_process = {(of // CODES, Stage(of % CODES)): ns for of, ns in given.items()}
        given = self._of_stage.add(replace(pieces, group=pieces.group % CODES), oldest)
        self.by_stage = {Stage(code): ns for code, ns in given.items()}
        self._looked_ns = max(self._looked_ns, now_ns)
        self._open_before = _keys(still_open)

    def _intervals(self, tables: dict[str, Rows], ends_ns: Ints) -> Intervals:
        whole = {name: ended(tables[name], ends_ns) for name in ("spans", *TABLE_OF.values())}
        rows = rows_of_stages(whole, self._with_spans)
        rows = rows.where(rows["stage"] != Stage.STEP)
        known = (rows["stage"] >= 0) & (rows["stage"] < Stage.STEP)
        stage = np.where(known, rows["stage"], int(Stage.OTHER)).astype(np.int64)
        group = rows["process"] * CODES + stage
        return of_spans(group, rows["start_ns"], rows["end_ns"], rows["lane"])


class _Given:
    """The time that groups were given so far, as intervals."""

    def __init__(self) -> None:
        self._given = joined([])
        self._ns: Counter[int] = Counter()

    def add(self, pieces: Intervals, oldest: int) -> Counter[int]:
        """Nanoseconds by group, with these pieces; nothing before `oldest` is remembered."""
        before = lengths(between(self._given, oldest, _LARGEST))
        self._given = union(between(joined([self._given, pieces]), oldest, _LARGEST))
        for group, ns in lengths(self._given).items():
            self._ns[group] += max(0, ns - before.get(group, 0))
        return self._ns


def _innermost(rows: Intervals, since: int, until: int) -> Intervals:
    """What of each row no other within it occupies, between two moments."""
    all_ = union(rows.take((rows.end > since) & (rows.start < until)))
    return between(innermost(all_, all_.group // CODES, is_evaluation(all_.group)), since, until)


def _keys(rows: Intervals) -> Ints:
    """Numbers by which a row is known again at the next look."""
    mixed: Ints = (rows.start * 1_000_003) ^ (rows.lane * 31) ^ rows.group
    return mixed


def lengths(intervals: Intervals) -> dict[int, int]:
    """Nanoseconds by group, of intervals that are disjoint within a group."""
    groups, which = np.unique(intervals.group, return_inverse=True)
    length = np.zeros(len(groups), np.int64)
    np.add.at(length, which, intervals.end - intervals.start)
    return dict(zip(groups.tolist(), length.tolist(), strict=True))
