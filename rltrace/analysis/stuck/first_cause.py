"""What a job that stands still waits for in the end: a process, a line, a sample.

Waits are walked to their first cause. A dead or a stopped process is one; so is a rank that is not
where the others wait for it; else the work that is open and waits for nothing else of the job: a
tool, a judge, an engine, a sample (a suspended coroutine has no stack, but an open row), then locks
and full queues; last a call that no process has taken up.
"""

from __future__ import annotations

import linecache
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from rltrace.analysis.figures.devices import device_load
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stuck.observed import Culprit, ProcessSeen, Stuck, ThreadSeen
from rltrace.analysis.timeline.stages import usual_step_s
from rltrace.trace.compact.stored_rows import quoted
from rltrace.trace.job_devices import AGENT
from rltrace.trace.read.processes import TracedProcess
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.run_dir import STEP_FAILED, THREAD_FAILED
from rltrace.trace.schema import EVENT_TABLES
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Stage, word

_SQL = packaged_toml("analysis/data/queries.toml")
KINDS = (
    *("died", "stopped", "absent", "blocked loop", "open work", "locks", "full queue"),
    *("not begun", "unknown"),
)
"""Kinds of causes, in the order in which they are believed."""

_KERNELS = {  # what its names for waits hold
    "hrtimer_nanosleep": "a sleep", "poll_schedule_timeout": "a poll", "do_wait": "a child",
    "locks_lock": "a lock of a file", "pipe": "a pipe", "unix_stream": "a socket",
    "sk_wait": "a socket", "wait_woken": "a socket", "inet_csk": "a socket",
}  # fmt: skip
_ACQUIRES = ("with ", ".acquire(")  # a line that does waits for a lock of Python's, not in C
_OTHERS = {"collective", "remote"}  # waits for other processes
_OWN = {"thread", "take", "idle", "loop"}  # waits for other threads of the process
_LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen", "<string>")
_ANSWERS = (Stage.REWARD, Stage.ENV)


class ThreadWait(NamedTuple):
    """What a thread waits for: a kind of waits.toml, `lock`, `sleep`, `loop` (an event loop with
    nothing to do), or `code`. `blocks`: it is in a callback of an event loop; `handed`: it is at a
    call that a pool or C code has handed to the thread."""

    kind: str
    function: str
    place: str
    blocks: bool = False
    handed: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the function is the one in `place`."""
        return self.place.endswith(f" {self.function}")


class _OpenWork(NamedTuple):
    """Work that has begun and not ended."""

    process: int
    what: str
    stage: Stage
    name: str
    start_ns: int
    table: str = "spans"


def last_moved_ns(run: OpenedRun) -> int:
    """When anything last began or ended in the run, or the run itself (Unix ns)."""
    times = {
        name: ", ".join(one.name for one in table.columns if one.is_time)
        for name, table in EVENT_TABLES.items()
        if name != "samples"
    }
    tables = [
        f"select max(greatest({of})) as moved_ns from raw_{name}" for name, of in times.items()
    ]
    found = run.ask(f"select coalesce(max(moved_ns), 0) from ({' union all '.join(tables)})")
    began_ns = run.meta.get("start_real_ns")
    return max(int(found[0][0]), began_ns if isinstance(began_ns, int) else 0)


def silence(analysis: RunAnalysis) -> tuple[int, int, float]:
    """Since when nothing moved (Unix ns), in which step (-1: none), and the seconds of a usual step
    (0: too few are known), or of what is open now where that takes longer (infinite: an evaluation
    or a checkpoint, the first one; or nothing is open)."""
    steps, usual_s = analysis.steps, usual_step_s(analysis.steps, analysis.breakdown)
    work = list(_open_work(analysis))
    if not work and not steps.in_progress:  # it may have nothing to do
        return last_moved_ns(analysis.run), -1, math.inf
    if math.isnan(usual_s):  # too few: the longest, with warm-up
        lengths_s = [] if steps.whole_run else [window.length_s for window in steps.windows]
        usual_s = max(lengths_s, default=0.0)
    step = steps.in_progress[-1][0] if steps.in_progress else -1
    open_s = max((_usual_s(analysis.run, one) for one in work), default=0.0)
    return last_moved_ns(analysis.run), step, max(usual_s, open_s if usual_s else 0.0)


def _usual_s(run: OpenedRun, work: _OpenWork) -> float:
    """How long nine in ten pieces of such work took; 0: none has ended."""
    table, same = work.table, ""
    if table == "spans":
        named = f"select id from names where text = {quoted(work.name)}"
        same = f"and stage = {int(work.stage)} and name in ({named})"
    found = run.ask(
        f"select quantile_cont((end_ns - start_ns) / 1e9, 0.9) from raw_{table} "
        f"where start_ns > 0 and end_ns > 0 {same}"
    )[0][0]
    first = math.inf if work.stage in (Stage.EVAL, Stage.CHECKPOINT) else 0.0
    return first if found is None else float(found)


def first_cause(analysis: RunAnalysis, seen: Mapping[str, ProcessSeen], seen_ns: int) -> Stuck:
    """Who or what the job waits for, by what was `seen` of its processes on this node (by `who`)
    at `seen_ns` (Unix ns)."""
    since_ns, step, usual_s = silence(analysis)
    case = _Case(analysis, seen, since_ns, seen_ns)
    causes = (
        *(case.died, case.stopped, case.absent, case.not_in_the_sync, case.blocked),
        *(case.open_work, case.locked, case.not_begun),
    )
    culprit = next((found for cause in causes for found in cause()), None)
    culprit = culprit or case.unknown()
    known_s = usual_s if math.isfinite(usual_s) else 0.0
    return Stuck(
        step, since_ns, seen_ns, known_s, KINDS.index(culprit.kind), culprit,
        tuple(case.waiting(culprit)), tuple(case.gpus()), (*case.also, *case.failures()),
    )  # fmt: skip


class _Case:
    """What is known of a job that stands still."""

    def __init__(
        self, analysis: RunAnalysis, seen: Mapping[str, ProcessSeen], since_ns: int, seen_ns: int
    ) -> None:
        run = analysis.run
        self.run, self.since_ns, self.seen_ns = run, since_ns, seen_ns
        jobs = [one for one in run.processes if one.role != AGENT and one.who in seen]
        self.processes = {one.number: one for one in jobs}
        self.seen = {one.number: seen[one.who] for one in jobs}
        self.waits = {number: _waits(one) for number, one in self.seen.items()}
        self.open: dict[int, list[_OpenWork]] = defaultdict(list)
        for one in _open_work(analysis):
            if one.process in self.processes:
                self.open[one.process].append(one)
        steps = analysis.steps.in_progress
        self.step = steps[-1][0] if steps else -1
        self.also: list[str] = []

    def died(self) -> Iterator[Culprit]:
        for number, found in self.open.items():
            if not self.seen[number].alive:
                inside = max(found, key=lambda one: one.start_ns)
                yield self._culprit("died", number, f"ended in the middle of {inside.what}")

    def stopped(self) -> Iterator[Culprit]:
        for number, process in self.seen.items():
            if process.alive and process.state in ("T", "t"):
                yield self._culprit("stopped", number, "is stopped (SIGSTOP, or a debugger)")

    def absent(self) -> Iterator[Culprit]:
        groups: dict[str, list[int]] = defaultdict(list)
        for number, process in self.processes.items():
            if process.rank is not None and self.seen[number].alive:
                groups[process.role or process.child_of or ""].append(number)
        for ranks in groups.values():
            inside = [n for n in ranks if any(w.kind == "collective" for w in self.waits[n])]
            away = [n for n in ranks if n not in inside]
            if not inside or len(ranks) < 2:
                continue
            done = self._micro_batches(ranks)
            if not away:  # all wait, but not in the same place
                away = _odd_ones({n: self._wait(n).place for n in ranks}, done)
            others = [n for n in ranks if n not in away]
            if not away or not others:
                continue
            number = min(away, key=lambda one: done[one])
            wait_for_it = f"{len(others)} other ranks wait" if others[1:] else "1 other rank waits"
            says = f"is not in {self._wait(others[0]).function}, where {wait_for_it}"
            if done[number] < (most := max(done[n] for n in others)):
                says += f"; it has begun {done[number]} pieces of training in this step"
                says += f", they {most}"
            yield self._culprit("absent", number, says, self._wait(number))

    def not_in_the_sync(self) -> Iterator[Culprit]:
        """An engine that took weights before and has not begun to take those that are sent."""
        of = self.run.ask(_SQL["latest_updates"])
        sent = max((version for _, version, is_open in of if is_open), default=-1)
        for number, version, _ in of:
            if version < sent and number in self.seen and self.seen[number].alive:
                says = f"has not begun weight update {sent}, which others wait to end"
                yield self._culprit("absent", number, says, self._wait(number))

    def blocked(self) -> Iterator[Culprit]:
        for number, waits in self.waits.items():
            for wait in (one for one in waits if one.blocks):
                held = len([one for one in self.open[number] if one.stage is not Stage.TRAIN])
                says = f"its event loop is blocked by {wait.function}"
                says += f"; {held} open calls wait for it" if held > 1 else ""
                yield self._culprit("blocked loop", number, says, wait)

    def open_work(self) -> Iterator[Culprit]:
        """The oldest work that waits for no other process: an answer from outside first, as a
        sample that waits for it is open, too; a call that a thread is at before a coroutine, which
        may wait for that call."""
        nearest = [max(found, key=_depth) for found in self.open.values()]
        leaves = [
            one for one in nearest if one.stage is not Stage.WAIT and self._leaf(one.process)
            if self._wait(one.process).kind not in ("lock", "put")
        ]  # fmt: skip
        leaves += [
            _OpenWork(number, "a call", Stage.OTHER, "", self.since_ns)
            for number, waits in self.waits.items()
            if waits and waits[0].kind == "loop" and self._wait(number).handed
            if self._leaf(number) and not self.open.get(number)
        ]
        ranked = ((_depth(one), self._wait(one.process), one) for one in leaves)
        for _, wait, one in sorted(ranked, key=lambda of: (-of[0][0], not of[1].place, of[0][1])):
            open_s = (self.seen_ns - one.start_ns) / 1e9
            says = f"{one.what} is open for {open_s:.0f} s"
            says += "" if wait.kind in _OWN or wait.is_own else f", in {wait.function}"
            yield self._culprit("open work", one.process, says, wait)

    def locked(self) -> Iterator[Culprit]:
        by_kind = {"lock": "locks", "put": "full queue", "network": "open work",
                   "child": "open work", "sleep": "unknown", "code": "unknown"}  # fmt: skip
        ranked = sorted(self.waits, key=lambda n: self.processes[n].start_ns)
        for kind, cause in by_kind.items():
            for number in ranked:
                mine = [wait for wait in self.waits[number] if wait.kind == kind]
                if not mine or not self._leaf(number):
                    continue
                places = list(dict.fromkeys(wait.place for wait in mine if wait.place))
                says = {
                    "lock": f"{len(mine)} threads wait for locks, and none will let one go"
                    if len(places) > 1
                    else "waits for a lock that nobody at work holds",
                    "put": "waits for room in a queue from which nobody takes",
                }.get(kind, f"waits in {mine[0].function}")
                self.also = places[1:4]
                yield self._culprit(cause, number, says, mine[0])

    def not_begun(self) -> Iterator[Culprit]:
        for number, waits in self.waits.items():
            for wait in (one for one in waits if one.kind == "remote"):
                says = f"waits in {wait.function} for an actor or a call that no process has begun"
                yield self._culprit("not begun", number, says, wait)

    def unknown(self) -> Culprit:
        number = next(iter(self.processes), None)
        if number is None:
            return Culprit("unknown", "", "", -1, "", -1, "no process of the job lives here")
        wait = self._wait(number)
        return self._culprit("unknown", number, f"waits in {wait.function}", wait)

    def waiting(self, culprit: Culprit) -> Iterator[str]:
        said: Counter[tuple[str, str]] = Counter()
        for number, process in self.processes.items():
            if process.who != culprit.who and self.seen[number].alive:
                wait = self._wait(number)
                doing = "idle" if wait.kind in ("idle", "loop") else f"in {wait.function}"
                said[process.role or process.child_of or "process", doing] += 1
        for (role, doing), n in said.most_common(5):
            plural = "es" if role.endswith("s") else "s"
            yield f"{n} {role}{plural} {doing}" if n > 1 else f"{role} {doing}"

    def gpus(self) -> Iterator[str]:
        """A kernel that never ends, or waits for other ranks, keeps its GPU busy; where a host
        launches none it is idle. What came before the silence is left out."""
        for gpu in device_load(self.run, self.since_ns + 2 * 10**9, self.seen_ns):
            if not 0.1 < gpu.busy_share < 0.9 and not math.isnan(gpu.busy_share):
                yield f"{gpu.device} of {gpu.host} {'busy' if gpu.busy_share > 0.5 else 'idle'}"

    def failures(self) -> Iterator[str]:
        """What went wrong before: a thread that failed may be the one that is waited for."""
        for problem in self.run.problems:
            if problem.get("what") in (STEP_FAILED, THREAD_FAILED):
                what = str(problem["what"]).replace("-", " ")
                yield f"{what}: {problem.get('target', '')}: {problem.get('detail', '')}"

    def _leaf(self, number: int) -> bool:
        """Whether a process waits for no other: at least one of its threads does not."""
        return not any(wait.kind in _OTHERS for wait in self.waits[number]) or any(
            wait.kind in ("network", "child", "put") for wait in self.waits[number]
        )

    def _wait(self, number: int) -> ThreadWait:
        """What says most of a process: a thread that waits for no other thread of it. A loop with
        nothing to do has handed its work to one, or no thread has it."""
        waits = self.waits[number]
        order = ("collective", "network", "child", "put", "remote", "lock", "sleep", "code")
        ranked = [wait for kind in order for wait in waits if wait.kind == kind]
        if waits and waits[0].kind == "loop":
            ranked = [wait for wait in ranked if wait.handed] or [waits[0]._replace(place="")]
        return next((w for w in waits if w.blocks), None) or (*ranked, *waits, _UNKNOWN)[0]

    def _micro_batches(self, ranks: Sequence[int]) -> dict[int, int]:
        of = ", ".join(map(str, ranks))
        query = _SQL["begun_training"].format(Stage=Stage, step=self.step, ranks=of)
        done = dict(self.run.ask(query))
        return {number: int(done.get(number, 0)) for number in ranks}

    def _culprit(
        self, kind: str, number: int, says: str, wait: ThreadWait | None = None
    ) -> Culprit:
        process = self.processes[number]
        return Culprit(
            kind, process.who, process.role or process.child_of or "",
            -1 if process.rank is None else process.rank, process.host, process.pid,
            f"{_named(process)}: {says}", wait.place if wait else "",
        )  # fmt: skip


_UNKNOWN = ThreadWait("code", "code that shows no stack", "")


def _named(process: TracedProcess) -> str:
    role = process.role or process.child_of or "process"
    rank = "" if process.rank is None else f" rank {process.rank}"
    return f"{role}{rank} ({process.host}, pid {process.pid})"


def _depth(one: _OpenWork) -> tuple[int, int]:
    """How near to the first cause it is, and when it began: the inner one is nearer."""
    rank = 3 if one.stage in _ANSWERS else 2 if one.stage is Stage.SYNC else 1
    return (rank if one.stage is not Stage.WAIT else 0, one.start_ns)


def _odd_ones(places: Mapping[int, str], done: Mapping[int, int]) -> list[int]:
    """The ranks that are where fewer others are; of two, the one that has done less."""
    if len(set(places.values())) < 2:
        fewest = min(done.values())
        return [n for n in places if done[n] == fewest] if len(set(done.values())) > 1 else []
    counts = Counter(places.values())
    least = min(counts.values())
    odd = [number for number, place in places.items() if counts[place] == least]
    return odd if len(odd) < len(places) else [min(odd, key=lambda number: done[number])]


def _open_work(analysis: RunAnalysis) -> Iterator[_OpenWork]:
    for span in analysis.activity.open_spans:
        if (stage := span.stage) is not Stage.STEP:
            what = f"{word(stage)} “{span.name}”"
            yield _OpenWork(span.process, what, stage, span.name, span.start_ns)
    for table, what, stage in _TABLES:
        name = "arg_min(component, start_ns)" if table == "rewards" else "-1"
        query = _SQL["open_rows"].format(table=f"raw_{table}", name=name)
        for process, n, start_ns, name in analysis.run.ask(query):
            more = (f" “{name}”" if name else "") + (f" (the oldest of {n})" if n > 1 else "")
            yield _OpenWork(process, f"a {what}{more}", stage, what, start_ns, table)


_TABLES = (
    ("trajectories", "trajectory", Stage.ROLLOUT),
    ("rewards", "reward", Stage.REWARD),
    ("syncs", "sync", Stage.SYNC),
)


def _waits(process: ProcessSeen) -> tuple[ThreadWait, ...]:
    """What each Python thread waits for, the main one first; one that moved waits for nothing."""
    found = []
    for place, thread in enumerate(process.threads):
        if thread.frames and not thread.moved:
            found.append(_wait_of(thread))
        elif not thread.frames and place == 0:
            found.append(_kernels(thread))
    return tuple(found)


def _kernels(thread: ThreadSeen) -> ThreadWait:
    """By the kernel's word for it, where the stack was not asked for."""
    if "epoll" in thread.wait or "ep_poll" in thread.wait:
        return ThreadWait("loop", "an event loop with nothing to do", "")
    if "futex" in thread.wait:  # first: `futex_do_wait` holds the name of a wait for a child
        return ThreadWait("code", "a wait for another thread, or in C", "")
    for begin, says in _KERNELS.items():
        if begin in thread.wait:
            kind = {"a child": "child", "a sleep": "sleep", "a poll": "sleep"}.get(says, "code")
            return ThreadWait(kind, says, "")
    return ThreadWait("code", thread.wait or "code that runs", "")


def _wait_of(thread: ThreadSeen) -> ThreadWait:
    frames = thread.frames
    places = (frame for frame in frames if not any(part in frame.file for part in _LIBRARY))
    own = next(places, frames[0])
    place = f"{own.file}:{own.line} {own.function}"
    loop = next((i for i, one in enumerate(frames) if one.function == "_run_once"), 0)
    if frames[0].file.endswith("selectors.py") and loop == 1:
        return ThreadWait("loop", "an event loop with nothing to do", place)
    blocks = loop > 0 and not frames[0].file.endswith("selectors.py")
    pooled = [one for one in frames if one.file.endswith("concurrent/futures/thread.py")]
    handed = len(pooled) > 1 or frames[-1].function != "_bootstrap"  # else `_worker` alone
    for kind, table in _kinds().items():
        for frame in frames[:1] if kind == "idle" else frames:
            for end, functions in table.items():
                inside = f"/{end}" in frame.file if end[-1] == "/" else frame.file.endswith(end)
                if inside and (not functions or frame.function in functions):
                    return ThreadWait(kind, frame.function, place, blocks, handed)
    line = linecache.getline(frames[0].file, frames[0].line)
    kind = "lock" if "futex" in thread.wait and any(one in line for one in _ACQUIRES) else "code"
    return ThreadWait(kind, frames[0].function, place, blocks, handed)


@cache
def _kinds() -> Mapping[str, Mapping[str, list[str]]]:
    return packaged_toml("analysis/data/waits.toml")
