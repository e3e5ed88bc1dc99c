"""All meters of a run, and what is going on in it at the last look."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.codes import named
from rltrace.analysis.devices import AGENT
from rltrace.analysis.intervals import Bools, Ints
from rltrace.analysis.live.distribution import STEP_S, SYNC_S, Distribution
from rltrace.analysis.live.job import job_of
from rltrace.analysis.live.kept_tables import SPARING, database_beside_the_job
from rltrace.analysis.live.sample_meter import ALWAYS_NS, SampleMeter
from rltrace.analysis.live.snapshot import Job
from rltrace.analysis.live.stage_meter import StageTime
from rltrace.trace.follow import Follower, Rows
from rltrace.trace.liveness import Liveness
from rltrace.trace.vocabulary import Stage, SyncRole

if TYPE_CHECKING:
    import duckdb

_INTERVALS = ("spans", "trajectories", "rewards", "syncs")
_HELD_NS = 3 * 10**9  # what became of samples counts once the rows about them have been read
_LAST = 10
_TIMES = ("start_ns", "end_ns", "time_ns", "first_token_ns")


class RunMeters:
    """Follows the run in `path`, and is read again at each `look`. Errors: `RltraceError` when
    there is no run there.

    Beside the meters: `job`; `running`, the `(process, stage)` that are open; `in_flight`, how many
    trajectories are being generated, and `oldest_ns`, since when (None: none is); `last_event_ns`,
    when the job last began or ended anything (-1: never); and `readings`, the latest value of each
    counter by `(counter, host, device)`. All are of the moment `looked_ns`.
    """

    def __init__(self, path: Path, lag_budget: float = math.inf) -> None:
        self.follower = Follower(path)
        self.stages = StageTime()
        self.steps = StepMeter()
        self.samples = SampleMeter(lag_budget, SPARING)
        self.weights = WeightMeter()
        self.running: set[tuple[int, Stage]] = set()
        self.in_flight = 0
        self.oldest_ns: int | None = None
        self.last_event_ns = -1
        self.readings: dict[tuple[str, str, int], float] = {}
        self.looked_ns = 0
        self._liveness = Liveness(path)
        self._alive: dict[int, bool | None] = {}
        self._job_alive: bool | None = None
        self._last_sign_ns: Ints = np.zeros(0, np.int64)
        self.look()

    def look(self) -> None:
        """Takes in what is new."""
        complete = self._poll()
        self.looked_ns = self.follower.now_ns()
        opened = {table: self.follower.unfinished(table) for table in _INTERVALS}
        self._note_signs(complete, opened)
        lives = self._lives()
        ends_ns = np.where(lives, self.looked_ns, self._last_sign_ns)
        self.stages.add(complete, opened, ends_ns, self.looked_ns)
        going_on = {table: rows.where(_goes_on(rows, lives)) for table, rows in opened.items()}
        self.steps.add(complete["spans"], going_on["spans"])
        self.samples.add(complete)
        over, known_ns = self.job.is_over, self.follower.reach().until_ns or self.looked_ns
        self.samples.count(
            self._database,
            self.follower,
            self.steps.begins_ns,
            ALWAYS_NS if over else min(self.looked_ns, known_ns) - _HELD_NS,
            final=over,
        )
        self.weights.add(complete, going_on)
        self._note_going_on(going_on)
        self._note_readings(complete["samples"])

    def waiting(self) -> int:
        """How many trajectories ended since the last steps began that the learner has not met;
        older ones it is not going to meet."""
        begins_ns = self.steps.begins_ns
        return self.samples.waiting(begins_ns[-_LAST] if len(begins_ns) >= _LAST else 0)

    @cached_property
    def _database(self) -> duckdb.DuckDBPyConnection:
        return database_beside_the_job()

    def _poll(self) -> dict[str, Rows]:
        """What became complete. Where processes are new there is a second look at once: only then
        is it known which of them live, and that what ended a moment ago is complete."""
        self._look_for_life()
        known = len(self.follower.processes)
        complete = self.follower.poll(frozenset(self._ended()))
        self._look_for_life()
        if len(self.follower.processes) == known:
            return complete
        again = self.follower.poll(frozenset(self._ended()))
        return {table: _together(rows, again[table]) for table, rows in complete.items()}

    def _look_for_life(self) -> None:
        for process in self.follower.processes:
            if self._alive.get(process.number, True) is True:
                self._alive[process.number] = self._liveness.of_process(process)
        if self._job_alive is not False:  # its pid may be another's one day
            self._job_alive = self._liveness.of_command(self.follower.meta)
        self.job: Job = job_of(
            self.follower.path,
            self.follower.meta,
            self.follower.gone,
            self._job_alive,
            self.last_event_ns > 0,
            self.last_event_ns,
            self.follower.now_ns(),
        )

    def _ended(self) -> list[str]:
        lives = self._lives()
        return [p.who for p in self.follower.processes if not lives[p.number]]

    def _lives(self) -> Bools:
        """By process; of whom nobody can tell, lives as long as the job does."""
        numbers = range(len(self.follower.processes))
        known = (self._alive.get(number) for number in numbers)
        over = self.job.is_over
        return np.array([not over if alive is None else alive for alive in known], np.bool_)

    def _note_signs(self, complete: Mapping[str, Rows], opened: Mapping[str, Rows]) -> None:
        """The last sign of life of each process, and of the job: what the agents read is none."""
        signs = np.zeros(len(self.follower.processes), np.int64)
        signs[: len(self._last_sign_ns)] = self._last_sign_ns
        for table, rows in (*complete.items(), *opened.items()):
            for column in _TIMES if table != "samples" else ():
                if column in rows.columns:
                    np.maximum.at(signs, rows["process"], rows[column])
        self._last_sign_ns = signs
        of_job = [int(signs[p.number]) for p in self.follower.processes if p.role != AGENT]
        known = [n for n in (*of_job, self.follower.lost_until_ns) if n > 0]
        self.last_event_ns = max(known, default=self.last_event_ns)

    def _note_going_on(self, going_on: Mapping[str, Rows]) -> None:
        spans, trajectories = going_on["spans"], going_on["trajectories"]
        self.running = {
            (int(process), stage)
            for stage in Stage
            if stage is not Stage.STEP
            for process in np.unique(spans["process"][spans["stage"] == stage])
        }
        ids = trajectories["trajectory"]
        self.in_flight = len(np.unique(ids[ids != -1])) + int((ids == -1).sum())
        self.oldest_ns = int(trajectories["start_ns"].min()) if len(trajectories) else None

    def _note_readings(self, samples: Rows) -> None:
        order = np.argsort(samples["time_ns"], kind="stable")
        columns = (samples[c][order].tolist() for c in ("counter", "process", "device", "value"))
        for counter, process, device, value in zip(*columns, strict=True):
            if not math.isnan(value):
                host = self.follower.processes[process].host
                self.readings[self.follower.name(counter), host, device] = value


def _together(first: Rows, then: Rows) -> Rows:
    columns = first.columns
    return Rows({name: np.concatenate([values, then[name]]) for name, values in columns.items()})


def _goes_on(rows: Rows, lives: Bools) -> Bools:
    if not len(rows):
        return np.zeros(0, np.bool_)
    going: Bools = (rows["end_ns"] < 0) & lives[rows["process"]]
    return going


# --- weight updates of a run that is being followed

_VERSIONS = {
    "spans": ("version",),
    "trajectories": ("first_version", "last_version"),
    "uses": ("version",),
    "syncs": ("version",),
}


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
            self.seconds.setdefault(part, Distribution(SYNC_S)).add(length_s)
            moved = rows["bytes"][rows["bytes"] >= 0]
            if len(moved):
                self.bytes[part] += int(moved.sum())
        newest = max((*_versions(complete), *_versions(opened)), default=-1)
        if newest >= 0:
            self.version = max(newest, self.version or 0)


def _versions(rows: Mapping[str, Rows]) -> Iterable[int]:
    for table, columns in _VERSIONS.items():
        for column in columns:
            if table in rows and len(rows[table]):
                yield int(rows[table][column].max())


# --- the learner steps of a run that is being followed: how many were completed, and how long


class StepMeter:
    """Steps as `rltrace.analysis.steps` counts them: where several processes record steps, one of
    them keeps the time, and another's counts only where that one recorded none.

    `number` is that of the newest step, None before the first. `open_since_ns` is when the one in
    progress began, None where there is none; `begins_ns` are those of the completed ones.
    """

    def __init__(self) -> None:
        self.seconds = Distribution(STEP_S)
        self.number: int | None = None
        self.open_since_ns: int | None = None
        self.begins_ns: list[int] = []
        self._newest_ns = -1
        self._keeper = -1
        self._last = (-1, -1)

    def add(self, complete: Rows, opened: Rows) -> None:
        """Takes in spans that became complete; `opened` are those in progress in living
        processes."""
        rows = complete.where(complete["stage"] == Stage.STEP)
        for i in np.argsort(rows["start_ns"], kind="stable"):
            self._completed(
                int(rows["step"][i]),
                int(rows["start_ns"][i]),
                int(rows["end_ns"][i]),
                int(rows["process"][i]),
            )
        rest = opened.where((opened["stage"] == Stage.STEP) & (opened["end_ns"] < 0))
        for step, start in zip(rest["step"], rest["start_ns"], strict=True):
            self._newest(int(step), int(start))
        if self.begins_ns:  # after one that has no end and others did: an exception left it
            rest = rest.where(rest["start_ns"] >= self.begins_ns[-1])
        self.open_since_ns = int(rest["start_ns"].max()) if len(rest) else None

    def _completed(self, step: int, start_ns: int, end_ns: int, process: int) -> None:
        self._newest(step, start_ns)
        last_step, last_end_ns = self._last
        twice = step == last_step and end_ns <= last_end_ns
        if start_ns >= last_end_ns or (process == self._keeper and not twice):
            self.begins_ns.append(start_ns)
            self.seconds.add([(end_ns - start_ns) / 1e9])
            self._keeper = process
            self._last = step, max(end_ns, last_end_ns)

    def _newest(self, step: int, start_ns: int) -> None:
        if start_ns > self._newest_ns:
            self._newest_ns = start_ns
            self.number = step if step >= 0 else self.number
