"""A run that is followed: rows, steps, who lives, and its job."""

from __future__ import annotations

import math
import shlex
import signal
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rltrace.analysis.live import snapshot as said
from rltrace.analysis.live.recent_rows import NEVER_NS, Kept, each, together
from rltrace.analysis.live.sample_meter import SampleMeter
from rltrace.analysis.timeline.intervals import Ints
from rltrace.analysis.timeline.steps import Steps, steps_of
from rltrace.trace.job_devices import AGENT, hidden_devices
from rltrace.trace.liveness import Liveness
from rltrace.trace.read.bounds import LEAST_SPACE_OF_ONE, check_space
from rltrace.trace.read.clock_alignment import EVERYTHING, Reach, clock_time
from rltrace.trace.read.row_filters import job_begins, parts_of
from rltrace.trace.read.run_follower import Rows, RunFollower
from rltrace.trace.schema import EVENT_TABLES
from rltrace.trace.vocabulary import Stage, stage_of

if TYPE_CHECKING:
    import duckdb

_STEP_COLUMNS = ("step", "start_ns", "end_ns", "process")


class Watched:
    """The run in `path`; `lag_budget` and `sparing` are as in `SampleMeter`. Errors: `RltraceError`
    when there is no run.

    `job` is what became of it, `steps` those that have been seen; `alive` says of each process
    whether it lives (None: nobody here can tell). `clock_ns` is the moment of the last look, and
    `now_ns` until when what has come reaches; `last_event_ns` is when the job last began or ended
    anything (-1: never); what agents read is none. `kept` are the complete rows, by table, until
    they are forgotten. Of all there were, `stages_of` are the stages of which a process has
    recorded a span; `last_sign_ns` is when each was last known to record; `learner_tells` is
    whether any learner says what it does with samples; `readings` are the latest of counters;
    `job_begins_ns` is of `job_begins`."""

    def __init__(self, path: Path, lag_budget: float = math.inf, sparing: float = 0.0) -> None:
        self._lag_budget, self._sparing = lag_budget, sparing
        self._liveness = Liveness(path)
        self._job_alive: bool | None = None
        self._begin(RunFollower(path))

    def _begin(self, follower: RunFollower) -> None:
        self.follower = follower
        self.kept = {name: Kept(table) for name, table in EVENT_TABLES.items()}
        self.samples = SampleMeter(self._lag_budget, self._sparing)
        self.learner_tells = False
        self.readings = Readings()
        self.stages_of: set[tuple[Stage, int]] = set()
        self.last_sign_ns: dict[int, int] = {}
        self.alive: dict[int, bool | None] = {}
        self.steps = Steps((), True, (), 0)
        self.job_begins_ns: list[int] = []
        self._step_rows: list[tuple[int, int, int, int]] = []
        self._looked_at: tuple[int, list[tuple[int, int, int, int]]] = (-1, [])
        self._open_since_ns = NEVER_NS
        self.last_event_ns = -1
        self.now_ns = self.clock_ns = 0
        self.job: said.Job = self._job_now()

    def read(self, at_once: bool = False, held_ns: int = 0) -> dict[str, Rows]:
        """Rows that became complete. What became of samples lately (`held_ns`) is counted later."""
        new = self._poll()
        self.clock_ns = self.follower.now_ns()
        # Of what has not come yet nobody knows: nothing is late, or takes long, for that.
        self.now_ns = min(self.clock_ns, self.follower.reach().until_ns or self.clock_ns)
        self._add(new)
        self.job = self._job_now()
        self._find_steps()
        until_ns = self.now_ns - held_ns if held_ns and not self.job.is_over else NEVER_NS
        self.samples.count(self, until_ns, final=at_once or self.job.is_over)
        return new

    def _poll(self) -> dict[str, Rows]:
        """What became complete. Where processes are new there is a second look: only then is it
        known which of them live, and that what ended a moment ago is complete."""
        known = len(self.follower.processes)
        self._look_for_life()
        over = self._job_alive is False or self.follower.meta.get("end_real_ns") is not None
        alive = [(p.who, self.alive.get(p.number)) for p in self.follower.processes]
        ended = frozenset(who for who, its in alive if its is False or (over and its is None))
        new = self.follower.poll(ended)
        if len(self.follower.processes) == known:
            return new
        again = self._poll()
        return {table: together([rows, again[table]], rows) for table, rows in new.items()}

    def _add(self, new: dict[str, Rows]) -> None:
        spans, open_spans = new["spans"], self.follower.unfinished("spans")
        self.samples.add(new)
        self.learner_tells |= len(new["uses"]) > 0
        self.readings.add(new["samples"])
        for name, rows in new.items():
            if name != "samples":
                self.kept[name].add(rows)
                self._note(rows)
        self._note(open_spans)
        for rows in (spans, open_spans):
            for number in np.unique(rows["process"]).tolist():
                mine = rows["process"] == number
                latest = max(int(rows["start_ns"][mine].max()), int(rows["end_ns"][mine].max()))
                self.last_sign_ns[number] = max(self.last_sign_ns.get(number, 0), latest)
        kinds = np.unique(np.stack([spans["stage"], spans["process"]]).astype(np.int64), axis=1)
        self.stages_of |= {(stage_of(code), number) for code, number in kinds.T.tolist()}
        self._step_rows += each(spans.where(spans["stage"] == Stage.STEP), *_STEP_COLUMNS)

    def _note(self, rows: Rows) -> None:
        times = [rows[c] for c in ("start_ns", "end_ns", "time_ns") if c in rows.columns]
        last_ns = (int(column.max(initial=-1)) for column in times)
        self.last_event_ns = max(self.last_event_ns, *last_ns)

    @cached_property
    def database(self) -> duckdb.DuckDBPyConnection:
        """Of one thread: there are few rows, and the job has work for the others."""
        import duckdb

        check_space(LEAST_SPACE_OF_ONE)
        return duckdb.connect(config={"threads": 1})

    @property
    def until_ns(self) -> int:
        """The moment that is shown: now, or when the job ended."""
        return self.job.until_ns if self.job.is_over else self.now_ns

    @property
    def step_starts_ns(self) -> list[int]:
        """When all steps began, whether they ended or not, in order."""
        begun = [*self.steps.in_progress, *(failed[:2] for failed in self.steps.failed)]
        return sorted([w.start_ns for w in self.steps.windows] + [start for _, start in begun])

    def lives(self, number: int) -> bool:
        """Whether a process lives; of whom nobody can tell, as long as the job does."""
        alive = self.alive.get(number)
        return not self.job.is_over if alive is None else alive

    def ends_ns(self, now_ns: int, last_ns: Mapping[int, int], unknown_ns: int) -> Ints:
        """Until when what is open lasts in each process: now where it lives, else its last."""
        numbers = range(len(self.follower.processes))
        ends = [now_ns if self.lives(n) else last_ns.get(n, unknown_ns) for n in numbers]
        return np.array(ends, np.int64)

    def unended(self, table: str) -> Rows:
        rows = self.follower.unfinished(table)
        return rows.where(rows["end_ns"] < 0)

    def going_on(self, table: str) -> Rows:
        rows = self.unended(table)
        living = [number for number in np.unique(rows["process"]) if self.lives(int(number))]
        return rows.where(np.isin(rows["process"], living))

    def _look_for_life(self) -> None:
        for process in self.follower.processes:
            if self.alive.get(process.number, True) is True:
                self.alive[process.number] = self._liveness.of_process(process)
        if self._job_alive is not False:  # its pid may be another's one day
            self._job_alive = self._liveness.of_command(self.follower.meta)

    def _job_now(self) -> said.Job:
        of, last_ns = self.follower, max(0, self.last_event_ns)
        begun = any(p.number in of.recorded for p in of.processes if p.role != AGENT)
        job = of.path, of.meta, of.gone, self._job_alive, begun, last_ns, self.clock_ns
        return job_of(*job, of.reach())

    def _open_steps(self) -> Rows:
        open_ = self.follower.unfinished("spans")
        return open_.where(open_["stage"] == Stage.STEP)

    def _find_steps(self) -> None:
        open_ = self._open_steps()
        self._open_since_ns = int(open_["start_ns"].min(initial=NEVER_NS))
        begun = [*each(open_.where(open_["end_ns"] < 0), *_STEP_COLUMNS)]
        looked_at, self._looked_at = self._looked_at, (len(self._step_rows), begun)
        if looked_at != self._looked_at:
            rows = sorted([*self._step_rows, *begun], key=lambda row: row[1])
            self.steps = steps_of(rows, (0, 0), parts_of(self.follower.processes))
            self.job_begins_ns = job_begins(rows, self.follower.processes)


_CUMULATIVE = ("_joules", "_seconds")
_RATE_OVER_NS = 4 * 10**9  # a rate is over at least this long: readings come once a second


class Readings:
    """By counter, host and device: the last readings, enough for a rate."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int, int], deque[tuple[int, float]]] = {}

    def add(self, rows: Rows) -> None:
        names = ("process", "counter", "device", "time_ns", "value")
        for process, counter, device, time_ns, value in each(rows, *names):
            last = self._last.setdefault((process, counter, device), deque())
            last.append((time_ns, value))
            while len(last) > 2 and last[1][0] <= time_ns - _RATE_OVER_NS:
                last.popleft()

    def now(self, follower: RunFollower) -> tuple[said.Reading, ...]:
        """The latest of each, in the order in which they first came."""
        found, hidden = [], hidden_devices(follower.processes)
        for (number, name, device), last in self._last.items():
            if device in hidden.get(number, ()):
                continue
            process, counter = follower.processes[number], follower.name(name)
            (before_ns, before), (time_ns, value) = last[0], last[-1]
            per_s = math.nan
            if counter.endswith(_CUMULATIVE) and time_ns > before_ns and value >= before:
                per_s = (value - before) / (time_ns - before_ns) * 1e9
            found.append(said.Reading(counter, process.host, device, value, per_s))
        return tuple(found)


SILENT_NS = 30 * 10**9


def job_of(
    path: Path, meta: Mapping[str, Any], gone: bool, alive: bool | None, begun: bool,
    last_sign_ns: int, now_ns: int, reach: Reach = EVERYTHING,
) -> said.Job:  # fmt: skip
    """The job of the run in `path`. `alive` is whether it lives (None: nobody here can tell),
    `begun` whether it has recorded anything, `last_sign_ns` when it last did (Unix ns), `reach`
    until when it is known where it was brought from a URL: it may have ended since."""
    started, ended, code = (meta.get(key) for key in ("start_real_ns", "end_real_ns", "exit_code"))
    since = started if isinstance(started, int) else now_ns
    code = code if isinstance(code, int) else None
    until = known_ns = min(now_ns, reach.until_ns or now_ns)
    silent = now_ns - last_sign_ns > SILENT_NS
    if reach.until_ns:  # what is shipped comes once a minute, or as seldom as its nodes say
        silent = len(reach.gone(now_ns)) == len(reach.nodes)
    if gone:
        state, sentence = said.DELETED, "the run's directory was deleted"
    elif isinstance(ended, int):
        state, sentence = _ended(code, bool(meta.get("signals")), meta.get("wrap_pid") is not None)
        until = ended
    elif alive is False:
        pid = meta.get("command_pid", meta.get("wrap_pid"))
        state, sentence = said.KILLED, f"killed: its command (pid {pid}) is gone"
        until = last_sign_ns or now_ns
    elif alive is None and silent:
        silent_s = (now_ns - max(last_sign_ns, since)) / 1e9
        state, sentence = said.SILENT, f"no sign of life for {silent_s:.0f} s"
    elif not begun:
        state, sentence = said.STARTING, "starting: nothing recorded yet"
    else:
        at = f" at {clock_time(known_ns)}, the last that has come" if reach.until_ns else ""
        state, sentence = said.RUNNING, f"running{at}"
    return said.Job(
        id=str(meta.get("id") or path.name),
        path=str(path),
        command=shlex.join(str(word) for word in meta.get("command") or ()),
        framework=str(meta.get("framework") or ""),
        state=state, sentence=sentence, exit_code=code,
        since_ns=since, until_ns=max(until, since),
    )  # fmt: skip


def _ended(code: int | None, signalled: bool, wrapped: bool) -> tuple[str, str]:
    if code is None and wrapped:
        return said.KILLED, "wrap was killed: how the job ended was not recorded"
    if not code:  # what is imported has none
        return said.ENDED, "ended"
    number = code - 128
    if number <= 0:
        if signalled:
            return said.ENDED, "ended from outside"
        return said.FAILED, f"failed with exit code {code}"
    name = signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"
    if signalled:
        return said.ENDED, f"ended from outside ({name})"
    return said.KILLED, f"killed by {name}" + " (kill -9)" * (number == signal.SIGKILL)
