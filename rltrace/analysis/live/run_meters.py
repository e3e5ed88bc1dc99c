"""All meters of a run, and what is going on in it at the last look."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rltrace.analysis.live.distribution import Distribution, bounds_of
from rltrace.analysis.live.kept_tables import SPARING, each
from rltrace.analysis.live.stage_meter import StageTime
from rltrace.analysis.live.watched import Watched
from rltrace.trace.follow import Rows
from rltrace.trace.vocabulary import Stage, SyncRole, named

_INTERVALS = ("spans", "trajectories", "rewards", "syncs")
_HELD_NS = 3 * 10**9  # what became of samples counts once the rows about them have been read
_LAST = 10


class RunMeters(Watched):
    """Follows the run in `path`, and is read again at each `look`. Errors: `RltraceError` when
    there is no run there.

    Beside the meters: `running`, the `(process, stage)` that are open; `in_flight`, how many
    trajectories are being generated, and `oldest_ns`, since when (None: none is). All are of the
    moment `clock_ns`.
    """

    def __init__(self, path: Path, lag_budget: float = math.inf) -> None:
        self.stages = StageTime()
        self.weights = WeightMeter()
        super().__init__(path, lag_budget, SPARING)
        self.look()

    def look(self) -> None:
        """Takes in what is new."""
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
    def step_s(self) -> Distribution:
        """Lengths of the complete steps."""
        lengths = Distribution(bounds_of("step_s"))
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
        """How many trajectories ended since the last steps began that the learner has not met;
        older ones it is not going to meet."""
        windows = self.steps.windows
        return self.samples.waiting(windows[-_LAST].start_ns if len(windows) >= _LAST else 0)


# --- weight updates of a run that is being followed

_VERSIONS = {"version", "first_version", "last_version"}


class WeightMeter:
    """By a participant's part (source, relay, sink): how long its part in one update took, and the
    bytes. `version` is the newest policy version that any process named, None before the first."""

    def __init__(self) -> None:
        self.seconds: dict[str, Distribution] = {}
        self.bytes: Counter[str] = Counter()
        self.version: int | None = None

    def add(self, complete: Mapping[str, Rows], opened: Mapping[str, Rows]) -> None:
        """Takes in rows by table: those that became complete, and those in progress."""
        syncs = complete["syncs"]
        for role in np.unique(syncs["role"]):
            rows = syncs.where(syncs["role"] == role)
            part = named(SyncRole, int(role))
            length_s = np.maximum(rows["end_ns"] - rows["start_ns"], 0) / 1e9
            self.seconds.setdefault(part, Distribution(bounds_of("sync_s"))).add(length_s)
            moved = rows["bytes"][rows["bytes"] >= 0]
            if len(moved):
                self.bytes[part] += int(moved.sum())
        for rows in (*complete.values(), *opened.values()):
            for column in rows.columns.keys() & _VERSIONS if len(rows) else ():
                if (newest := int(rows[column].max())) >= 0:
                    self.version = max(newest, self.version or 0)
