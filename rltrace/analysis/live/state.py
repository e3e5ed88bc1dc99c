"""`LiveState`: a run while it is going on, brought up to date as often as somebody looks.

What is shown agrees with the report: the figures of the steps are made by the report's own code
over the rows of the last steps, or by a mirror of its SQL that a test holds to it. Only rows that
such figures need are kept.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from time import monotonic, thread_time
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.composition import stated_placement
from rltrace.analysis.devices import AGENT, Devices, count_devices
from rltrace.analysis.live import roles
from rltrace.analysis.live.gathered import Gathered
from rltrace.analysis.live.job import job_of
from rltrace.analysis.live.kept_tables import database_beside_the_job
from rltrace.analysis.live.snapshot import Job, Snapshot, StepNow, Window
from rltrace.analysis.live.window import NEVER_NS, Recorded, window_of
from rltrace.analysis.steps import Steps, steps_of
from rltrace.trace.errors import RltraceError
from rltrace.trace.follow import Follower, Rows
from rltrace.trace.liveness import Liveness
from rltrace.trace.reach import EVERYTHING
from rltrace.trace.sampled import only_some
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    import duckdb

LAST_STEPS = 10
"""How many steady steps the figures are of."""

BUSY_OVER_S = 10.0
"""The time over which it is shown what each role did."""

_STEPLESS_S = 60.0
_STEPLESS_EVERY_NS = 5 * 10**9  # figures of the last minute are made this often
_LOOK_BACK_STEPS = 32  # a sample may have been generated this many steps before it is trained on
_SLOWEST = 8


class LiveState:
    """The run in `path`; figures are of the last `last` steady steps. Errors: `RltraceError` when
    there is no run. Call `poll` now and then, and `snapshot` for what is known. Who watches a job
    for hours is `sparing`: once made, figures stay for that many times the CPU time that they took.
    """

    def __init__(self, path: Path, last: int = LAST_STEPS, sparing: float = 0.0) -> None:
        self._path, self._sparing = path, sparing
        self._last = last
        self._liveness = Liveness(path)
        self._job_alive: bool | None = None
        self._window_not_before_s = 0.0
        self._start(Follower(path))

    def poll(self, at_once: bool = False) -> None:
        """Reads what is new; `at_once`: without sparing. Where a step shows up that began before
        what was forgotten, the run is read again: steps may be recorded when they are over, and
        rows in any order."""
        self._read(at_once)
        if not self._gathered.reach_back(self._since(), self._samples_since()):
            try:
                self._start(Follower(self._path))
            except RltraceError:
                return  # it was deleted meanwhile
        self._forget()

    def _start(self, follower: Follower) -> None:
        """Reads all there is. Nothing is forgotten before it is: at the first look steps may be
        missing whose rows are there, or rows whose steps are."""
        self._follower = follower
        self._gathered = Gathered(self._sparing)
        self._alive: dict[int, bool | None] = {}
        self._looked_at: tuple[int, list[tuple[int, int, int, int]]] = (-1, [])
        self._steps = Steps((), True, (), 0)
        self._steps_open_since_ns = NEVER_NS
        self._window: Window | None = None
        self._stale = 0  # how often the window is to be computed again
        self._devices = Devices("", 0, "", "")
        self._now_ns = self._clock_ns = 0
        self._reach = EVERYTHING
        self._job = self._job_now()
        self._read()
        self._read()  # what ended a moment ago is known to be complete at the second look

    def _read(self, at_once: bool = False) -> None:
        self._look_for_life()
        over = self._job_alive is False or self._follower.meta.get("end_real_ns") is not None
        ended = frozenset(
            process.who
            for process in self._follower.processes
            if self._alive.get(process.number) is False
            or (over and self._alive.get(process.number) is None)
        )
        new = self._follower.poll(ended)
        self._clock_ns = self._follower.now_ns()
        self._reach = self._follower.reach()
        # Of what has not come yet nobody knows: nothing is late, or takes long, for that.
        self._now_ns = min(self._clock_ns, self._reach.until_ns or self._clock_ns)
        if len(new["spans"]) or not self._devices.kind:
            self._devices = count_devices(self._follower)
        self._gathered.add(new, self._follower.unfinished("spans"))
        self._job = self._job_now()
        self._find_steps()
        starts = sorted(start_ns for _, start_ns, _, _ in self._gathered.step_rows)
        self._gathered.counting.samples.count(
            self._database, self._follower, starts, final=at_once or self._job.is_over
        )
        if self._adds_to_the_window(new):
            self._stale = max(self._stale, 1)
        at_once |= self._job.is_over or monotonic() >= self._window_not_before_s
        if self._stale > 0 and at_once:
            self._stale -= 1
            self._find_window()

    def _find_window(self) -> None:
        began_s, steps = thread_time(), self._steps
        if steps.whole_run and self._follower.lost_until_ns > 0:
            self._window = None
            return
        recorded = self._recorded(self._since(), self._samples_since())
        next_ns = self._next_begins_ns()
        self._window = window_of(self._database, recorded, steps, self._last, next_ns)
        self._window_not_before_s = monotonic() + self._sparing * (thread_time() - began_s)

    @cached_property
    def _database(self) -> duckdb.DuckDBPyConnection:
        return database_beside_the_job()

    def snapshot(self) -> Snapshot:
        """What is known as of the last `poll`."""
        follower, now = self._follower, self._now_ns
        job = self._job
        open_spans = self._open("spans")
        generating = self._open("trajectories")
        waiting = generating["first_token_ns"] < 0
        until = self._until_ns()
        busy_since = until - int(BUSY_OVER_S * 1e9)
        return Snapshot(
            time_ns=self._clock_ns,
            job=job,
            placement=(stated_placement(follower) or ("", ""))[0],
            step=self._step_now(job),
            window=self._window,
            totals=self._gathered.counting.totals(
                0 if self._steps.whole_run else len(self._steps.windows)
            ),
            roles=roles.roles_now(
                follower.processes,
                follower.recorded,
                self._alive,
                open_spans,
                generating,
                self._recorded(busy_since, busy_since).activity(busy_since),
                busy_since,
                until,
            ),
            queue=self._queue(),
            in_flight=len(generating),
            waiting_for_first_token=int(waiting.sum()),
            slowest=roles.slowest(follower.processes, generating, now, _SLOWEST),
            devices=self._devices,
            readings=self._gathered.readings.now(follower),
            dead=roles.dead_in_the_middle(
                follower, self._alive, self._unended("spans"), self._gathered.last_sign_ns, now
            ),
            processes=sum(process.role != AGENT for process in follower.processes),
            problems=len(follower.problems),
            only_some=only_some(follower.meta),
            dropped=follower.dropped,
            stopped=roles.stopped_recording(follower, until),
        )

    def _look_for_life(self) -> None:
        for process in self._follower.processes:
            if self._alive.get(process.number, True) is True:
                self._alive[process.number] = self._liveness.of_process(process)
        if self._job_alive is not False:
            self._job_alive = self._liveness.of_command(self._follower.meta)

    def _find_steps(self) -> None:
        """Brings the steps up to date, and says when the window is to be computed again: when there
        is a new step, and once more when what ended with it has come in."""
        open_ = self._follower.unfinished("spans")
        open_ = open_.where(open_["stage"] == Stage.STEP)
        self._steps_open_since_ns = int(open_["start_ns"].min(initial=NEVER_NS))
        open_ = open_.where(open_["end_ns"] < 0)
        columns = (open_[c].tolist() for c in ("step", "start_ns", "end_ns", "process"))
        begun = [*zip(*columns, strict=True)]
        looked_at = (len(self._gathered.step_rows), begun)
        if not self._gathered.step_rows:  # the last minute is another one at each look
            every_ns = 1 if self._job.is_over else _STEPLESS_EVERY_NS
            looked_at = (self._until_ns() // every_ns, begun)
        if looked_at == self._looked_at:
            return
        self._looked_at = looked_at
        rows = sorted([*self._gathered.step_rows, *begun], key=lambda row: row[1])
        until_ns = self._until_ns()
        stepless_ns = max(self._gathered.first_ns, until_ns - int(_STEPLESS_S * 1e9))
        before = self._steps
        self._steps = steps_of(rows, (stepless_ns, until_ns))
        if self._steps.windows != before.windows:
            self._stale = 2

    def _next_begins_ns(self) -> int:
        """When the step after the last complete one began. It may be over, and is complete a little
        later: what was recorded in it is known at once, and is not the step's before."""
        if self._steps.whole_run or not self._steps.windows:
            return NEVER_NS
        last = self._steps.windows[-1]
        open_ = self._follower.unfinished("spans")
        open_ = open_.where(open_["stage"] == Stage.STEP)
        start = open_["start_ns"]
        # A loop may begin a step before the one before it ends.
        early = (open_["process"] == last.process) & (open_["step"] != last.step)
        after = (start >= last.end_ns) | (early & (start > last.start_ns))
        return int(start[after].min(initial=NEVER_NS))

    def _adds_to_the_window(self, new: dict[str, Rows]) -> bool:
        """Whether rows came in late: of a step that is in the window already. Once the job is over
        there is no next step with which what reaches into the last one would be taken in."""
        if self._window is None or self._steps.whole_run:
            return False
        tables = [rows for name, rows in new.items() if name != "samples" and len(rows)]
        ends = [rows["end_ns" if "end_ns" in rows.columns else "time_ns"] for rows in tables]
        until_ns = self._window.until_ns
        return any(self._job.is_over or int(end.min()) <= until_ns for end in ends)

    def _until_ns(self) -> int:
        """The moment that is shown: now, or when the job ended."""
        return self._job.until_ns if self._job.is_over else self._now_ns

    def _since(self) -> int:
        """From when on the window needs spans, or the one of the first step that ends will."""
        if self._steps.whole_run or not self._steps.windows:
            since_ns = min(self._until_ns() - int(_STEPLESS_S * 1e9), self._steps_open_since_ns)
            return max(since_ns, self._follower.lost_until_ns)
        return self._steps.windows[max(0, len(self._steps.windows) - self._last - 1)].start_ns

    def _samples_since(self) -> int:
        """From when on the window needs samples and what became of them."""
        windows = self._steps.windows
        if self._steps.whole_run or not windows:
            since_ns = min(
                self._until_ns() - int(10 * _STEPLESS_S * 1e9), self._steps_open_since_ns
            )
        else:
            first = len(windows) - self._last - _LOOK_BACK_STEPS
            since_ns = windows[first].start_ns if first > 0 else 0
        return max(since_ns, self._follower.lost_until_ns)

    def _recorded(self, since_ns: int, samples_ns: int) -> Recorded:
        """Spans and syncs since a moment, samples and what became of them since another."""
        kept = self._gathered.kept
        return Recorded(
            {
                "spans": kept["spans"].since(since_ns, self._lasting("spans")),
                "syncs": kept["syncs"].since(since_ns, self._follower.unfinished("syncs")),
                "trajectories": kept["trajectories"].since(
                    samples_ns, self._lasting("trajectories")
                ),
                "rewards": kept["rewards"].since(samples_ns, self._lasting("rewards")),
                "uses": kept["uses"].since(samples_ns),
            },
            self._gathered.spans_of,
            self._follower.processes,
            self._follower.names,
            bool(only_some(self._follower.meta)),
        )

    def _lasting(self, table: str) -> Rows:
        """Rows that are not complete. What is open lasts until now, and in a process that lives no
        more until its last sign of life: then a sample, or a verdict, has no end."""
        rows = self._follower.unfinished(table)
        end = rows["end_ns"].copy()
        for place in np.flatnonzero(end < 0):
            number = int(rows["process"][place])
            if self._lives(number):
                end[place] = self._now_ns
            elif table == "spans":
                end[place] = self._gathered.last_sign_ns.get(number, int(rows["start_ns"][place]))
        return Rows({**rows.columns, "end_ns": end})

    def _lives(self, number: int) -> bool:
        alive = self._alive.get(number)
        return not self._job.is_over if alive is None else alive

    def _unended(self, table: str) -> Rows:
        rows = self._follower.unfinished(table)
        return rows.where(rows["end_ns"] < 0)

    def _open(self, table: str) -> Rows:
        """What is in progress in processes that live."""
        rows = self._unended(table)
        living = [number for number in np.unique(rows["process"]) if self._lives(int(number))]
        return rows.where(np.isin(rows["process"], living))

    def _job_now(self) -> Job:
        job_processes = [p for p in self._follower.processes if p.role != AGENT]
        return job_of(
            self._follower.path,
            self._follower.meta,
            self._follower.gone,
            self._job_alive,
            any(p.number in self._follower.recorded for p in job_processes),
            max([0, self._follower.lost_until_ns, *self._gathered.last_sign_ns.values()]),
            self._clock_ns,
            self._reach,
        )

    def _step_now(self, job: Job) -> StepNow | None:
        """The last step that was begun and has not ended; a job that ended well left none open but
        by an exception that it caught."""
        if not self._steps.in_progress or job.exit_code == 0:
            return None
        step, start_ns = max(self._steps.in_progress, key=lambda one: one[1])
        usual_s = self._window.step_s if self._window else float("nan")
        until_ns = job.until_ns if job.is_over else self._now_ns
        return StepNow(step, start_ns, max(0, until_ns - start_ns) / 1e9, usual_s)

    def _queue(self) -> int | None:
        """Samples that may still be met: those that are older than any that the learner trains on
        were dropped, or filtered, and nobody said so."""
        if not self._gathered.counting.learner_tells:
            return None
        windows, window = self._steps.windows, self._window
        if window is None or self._steps.whole_run:
            return self._gathered.counting.samples.waiting(window.since_ns if window else 0)
        lag = max(0, window.lags.largest) if window.lags else 1
        since_ns = windows[-min(lag, len(windows))].start_ns if lag else windows[-1].end_ns
        return self._gathered.counting.samples.waiting(since_ns)

    def _forget(self) -> None:
        """Drops rows that no later window will need."""
        busy_ns = self._until_ns() - int(BUSY_OVER_S * 1e9)
        self._gathered.forget(min(self._since(), busy_ns), self._samples_since())
