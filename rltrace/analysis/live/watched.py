"""A run that is followed: what has come of its rows, its steps, and who of it lives."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.live.gathered import Gathered
from rltrace.analysis.live.job import job_of
from rltrace.analysis.live.kept_tables import database_beside_the_job, together
from rltrace.analysis.live.sample_meter import ALWAYS_NS, SampleMeter
from rltrace.analysis.live.snapshot import Job
from rltrace.analysis.steps import Steps, steps_of
from rltrace.trace.follow import Follower, Rows
from rltrace.trace.given import AGENT
from rltrace.trace.liveness import Liveness
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    import duckdb

NEVER_NS = ALWAYS_NS


class Watched:
    """The run in `path`. Errors: `RltraceError` when there is no run.

    `job` is what became of it; `steps` are those that have been seen; `alive` says of each process
    whether it lives (None: nobody here can tell). `clock_ns` is the moment of the last look, and
    `now_ns` until when what has come reaches.
    """

    def __init__(self, path: Path, samples: SampleMeter) -> None:
        self._liveness = Liveness(path)
        self._job_alive: bool | None = None
        self._begin(Follower(path), samples)

    def _begin(self, follower: Follower, samples: SampleMeter) -> None:
        self.follower = follower
        self.gathered = Gathered(samples)
        self.alive: dict[int, bool | None] = {}
        self.steps = Steps((), True, (), 0)
        self._looked_at: tuple[int, list[tuple[int, int, int, int]]] = (-1, [])
        self._open_since_ns = NEVER_NS
        self.now_ns = self.clock_ns = 0
        self.job: Job = self._job_now()

    def read(self, at_once: bool = False, held_ns: int = 0) -> dict[str, Rows]:
        """Takes in what is new, and gives it: rows that became complete. Of what became of samples
        the last `held_ns` are counted later."""
        new = self._poll()
        self.clock_ns = self.follower.now_ns()
        # Of what has not come yet nobody knows: nothing is late, or takes long, for that.
        self.now_ns = min(self.clock_ns, self.follower.reach().until_ns or self.clock_ns)
        self.gathered.add(new, self.follower.unfinished("spans"))
        self.job = self._job_now()
        self._find_steps()
        self.gathered.samples.count(
            self.database,
            self.follower,
            sorted(start_ns for _, start_ns, _, _ in self.gathered.step_rows),
            self.now_ns - held_ns if held_ns and not self.job.is_over else ALWAYS_NS,
            final=at_once or self.job.is_over,
        )
        return new

    def _poll(self) -> dict[str, Rows]:
        """What became complete. Where processes are new there is a second look at once: only then
        is it known which of them live, and that what ended a moment ago is complete."""
        known = len(self.follower.processes)
        self._look_for_life()
        over = self._job_alive is False or self.follower.meta.get("end_real_ns") is not None
        ended = frozenset(
            process.who
            for process in self.follower.processes
            if self.alive.get(process.number) is False
            or (over and self.alive.get(process.number) is None)
        )
        new = self.follower.poll(ended)
        if len(self.follower.processes) == known:
            return new
        again = self._poll()
        return {table: together([rows, again[table]], rows) for table, rows in new.items()}

    @cached_property
    def database(self) -> duckdb.DuckDBPyConnection:
        return database_beside_the_job()

    @property
    def until_ns(self) -> int:
        """The moment that is shown: now, or when the job ended."""
        return self.job.until_ns if self.job.is_over else self.now_ns

    @property
    def has_steps(self) -> bool:
        """Whether a step was completed."""
        return bool(self.steps.windows)

    def lives(self, number: int) -> bool:
        """Whether a process lives; of whom nobody can tell, as long as the job does."""
        alive = self.alive.get(number)
        return not self.job.is_over if alive is None else alive

    def unended(self, table: str) -> Rows:
        """Rows without an end."""
        rows = self.follower.unfinished(table)
        return rows.where(rows["end_ns"] < 0)

    def going_on(self, table: str) -> Rows:
        """What is in progress in processes that live."""
        rows = self.unended(table)
        living = [number for number in np.unique(rows["process"]) if self.lives(int(number))]
        return rows.where(np.isin(rows["process"], living))

    def _look_for_life(self) -> None:
        for process in self.follower.processes:
            if self.alive.get(process.number, True) is True:
                self.alive[process.number] = self._liveness.of_process(process)
        if self._job_alive is not False:  # its pid may be another's one day
            self._job_alive = self._liveness.of_command(self.follower.meta)

    def _job_now(self) -> Job:
        job_processes = [p for p in self.follower.processes if p.role != AGENT]
        return job_of(
            self.follower.path,
            self.follower.meta,
            self.follower.gone,
            self._job_alive,
            any(p.number in self.follower.recorded for p in job_processes),
            max(0, self.last_event_ns),
            self.clock_ns,
            self.follower.reach(),
        )

    @property
    def last_event_ns(self) -> int:
        """When the job last began or ended anything (-1: never); what agents read is none."""
        return max(self.gathered.latest_ns, self.follower.lost_until_ns or -1)

    def _open_steps(self) -> Rows:
        open_ = self.follower.unfinished("spans")
        return open_.where(open_["stage"] == Stage.STEP)

    def _find_steps(self) -> None:
        open_ = self._open_steps()
        self._open_since_ns = int(open_["start_ns"].min(initial=NEVER_NS))
        open_ = open_.where(open_["end_ns"] < 0)
        columns = (open_[c].tolist() for c in ("step", "start_ns", "end_ns", "process"))
        begun = [*zip(*columns, strict=True)]
        looked_at = (len(self.gathered.step_rows), begun)
        if looked_at != self._looked_at:
            self._looked_at = looked_at
            rows = sorted([*self.gathered.step_rows, *begun], key=lambda row: row[1])
            self.steps = steps_of(rows, (0, 0))
