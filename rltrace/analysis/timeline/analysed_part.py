"""Which part of a run is analysed: a phase, some of its steps, what was recorded whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any, TypeVar

from rltrace.analysis.timeline.steps import Steps, Window, steps_of
from rltrace.trace.errors import CANNOT_TELL, WRONG_USAGE, RltraceError, WrongUsage
from rltrace.trace.job_devices import AGENT
from rltrace.trace.read.bounds import EVER_NS
from rltrace.trace.read.processes import TracedProcess
from rltrace.trace.read.row_filters import Range, begun_again, of_one_rank, parts_of
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.read.run_losses import read_ends
from rltrace.trace.run_dir import PROCESS_FAILED, RECORDING_STOPPED

AnyRun = TypeVar("AnyRun", bound=OpenedRun)

_WHOLE_RUN = Range(0, EVER_NS, first_step=-1)
_RANGE = re.compile(r"\s*(\d*)\s*(?:\.\.\s*(\d*)\s*)?")


# --- trainings that follow each other in one run, as two trainers in a script, or `sft && grpo`
# A step whose number is that of the first one, or less, begins a phase if what was before had come
# further, or was of another process, and ended well: no step is left open, and no process of it
# failed. Else work is done again: from a checkpoint, or all of it after a crash.


@dataclass(frozen=True)
class TrainingPhase:
    """One of the trainings of a run, by `number` from 1 on: how many `steps` it completed, and from
    the begin of `first_step` to the end of `last_step` (Unix ns). From `since_ns` on and before
    `until_ns` all is its own: what lies between two phases may belong to either."""

    number: int
    steps: int
    first_step: int
    last_step: int
    start_ns: int
    end_ns: int
    since_ns: int = field(metadata={"json": False})
    until_ns: int = field(metadata={"json": False})


_Step = tuple[int, int, int, int]  # number, start_ns, end_ns or -1, process


def find_phases(run: OpenedRun) -> tuple[TrainingPhase, ...]:
    """The phases of the whole run, in order; none where it has no steps."""
    rows = of_one_rank(run.step_rows(), run.processes)
    cuts = [0, *_phase_begins(run, rows), len(rows)]
    parts = [rows[a:b] for a, b in pairwise(cuts) if a < b]
    begins_ns = [part[0][1] for part in parts]
    found, since_ns = list[TrainingPhase](), 0
    for part, until_ns in zip(parts, [*begins_ns[1:], EVER_NS], strict=False):
        whole = {step for step, start, end, _ in part if end >= start}
        (first, start_ns, _, _), end_ns = part[0], max(max(row[1:3]) for row in part)
        bounds = first, part[-1][0], start_ns, end_ns, since_ns, until_ns
        found.append(TrainingPhase(len(found) + 1, len(whole), *bounds))
        since_ns = end_ns
    return tuple(found)


def _phase_begins(run: OpenedRun, rows: list[_Step]) -> Iterator[int]:
    """The places of rows, which are in order of their start, at which another phase begins."""
    if not (places := begun_again(rows)):  # as in nearly all runs
        return
    ends, since = read_ends(run.path, run.processes), 0
    failed = {one.get("who") for one in run.problems if one.get("what") == PROCESS_FAILED}
    bad = {of for of, end in ends.items() if not end.asked and (end.signal or end.code or end.why)}
    ill = bad | {process.number for process in run.processes if process.who in failed}
    for place in places:
        (*_, end_ns, by), (step, _, _, process) = rows[place - 1], rows[place]
        if step <= rows[since][0] and end_ns >= 0 and (by == process or by not in ill):
            since = place
            yield place


def last_phase(run: AnyRun) -> AnyRun:
    """`run`, or where it has several phases and none of its parts was chosen, the last of them."""
    if run.range is not None or len(find_phases(run)) < 2:
        return run
    last = type(run)(run.path)
    narrow(last, None)
    return last


def _keep_processes(run: OpenedRun, phase: TrainingPhase) -> None:
    """Of a run that was narrowed to a phase: those that are at work in it, and what they say of
    themselves at its begin, as an earlier trainer of the same process had settings of its own."""
    tables = ("spans", "trajectories", "rewards", "syncs")
    within = f"start_ns < {phase.end_ns} and greatest(start_ns, end_ns) > {phase.start_ns}"
    rows = (f"select process from recorded_{table} where {within}" for table in tables)
    at_work = {process for (process,) in run.ask(" union ".join(rows))}
    run.know_only(
        replace(one, facts=_facts_at(run, one, phase.start_ns))
        for one in run.processes
        if one.role == AGENT
        or one.number in at_work
        or phase.since_ns <= one.start_ns < phase.end_ns
    )


def _facts_at(run: OpenedRun, process: TracedProcess, at_ns: int) -> dict[str, Any]:
    clock, trainings = run.clock_of(process.node), process.facts.get("trainings", [])
    begun = [one for one in trainings if clock and clock.moment(one["since_ns"]) <= at_ns]
    if not begun:
        return process.facts
    of_one = {name for one in trainings for name in one}
    others = {name: fact for name, fact in process.facts.items() if name not in of_one}
    return {**others, **begun[-1]}


@dataclass(frozen=True)
class StepSelection:
    """Of a phase (None: the last one) the steps from `first` to `last` (None: no bound), or the
    `newest` complete ones and later."""

    first: int | None = None
    last: int | None = None
    newest: int | None = None
    phase: int | None = None


def asked_steps(text: str) -> StepSelection:
    """What `7`, `5..9`, `5..` and `..9` ask for. Errors: `RltraceError`."""
    found = _RANGE.fullmatch(text)
    if found is None or not (found[1] or found[2]):
        raise WrongUsage(f"--steps {text}: give a step or a range of them, as 7, 5..9, 5.. or ..9")
    first = int(found[1]) if found[1] else None
    last = int(found[2]) if found[2] else None if ".." in text else first
    if first is not None and last is not None and last < first:
        raise WrongUsage(f"--steps {text}: the last step comes before the first")
    return StepSelection(first, last)


def narrow(run: OpenedRun, asked: StepSelection | None) -> None:
    """Narrows a run to the phase (by default the last) and the steps asked for. Errors:
    `RltraceError` where it has none of them."""
    asked, phases = asked or StepSelection(), find_phases(run)
    if asked.phase is not None and asked.phase > len(phases):
        there = f"{len(phases)} phase{'s' * (len(phases) != 1)} (`rltrace report --json`)"
        raise WrongUsage(f"{run.path} has no phase {asked.phase}: it has {there}")
    phase, of = None, _WHOLE_RUN
    if len(phases) > 1:
        phase = phases[-1 if asked.phase is None else asked.phase - 1]
        of = replace(of, since_ns=phase.since_ns, until_ns=phase.until_ns)
    if asked != StepSelection(phase=asked.phase):
        of = _of_steps(run, asked, of)
    if of != _WHOLE_RUN:
        run.narrow(of)
    if phase is not None:
        _keep_processes(run, phase)


def _of_steps(run: OpenedRun, asked: StepSelection, of: Range) -> Range:
    """The steps asked for, of those in `of`. Errors: as `narrow`."""
    _, found, windows = _steps_in(run, of)
    begun = sorted((start, number) for number, start in found.in_progress)
    if not windows and not begun:
        code = WRONG_USAGE if asked.newest is None else CANNOT_TELL
        raise RltraceError(f"{run.path} has no steps, so none can be chosen", code)
    if asked.newest is not None:
        if not windows:
            raise RltraceError(f"{run.path} has no complete step yet", CANNOT_TELL)
        return replace(of, since_ns=windows[-asked.newest :][0].start_ns)
    low = 0 if asked.first is None else asked.first
    high = EVER_NS if asked.last is None else asked.last
    chosen = _stretch([low <= window.step <= high for window in windows])
    going = [start for start, number in begun if low <= number <= high]
    if not chosen and not going:
        known = [window.step for window in windows] + [number for _, number in begun]
        said = f"{min(known)} to {max(known)}" if len(known) > 1 else str(known[0])
        raise WrongUsage(f"{run.path} has none of these steps: it has {said}")
    starts = [windows[place].start_ns for place in chosen] or going
    # Until the first step after them began; without an end where none did.
    later = [window.start_ns for window in windows if window.start_ns > starts[-1]]
    later += [start for start, number in begun if start > starts[-1] and number > high]
    return Range(starts[0], min(later, default=of.until_ns), low, high)


def _steps_in(run: OpenedRun, of: Range) -> tuple[list[_Step], Steps, tuple[Window, ...]]:
    """Rows of steps that began in a range, its steps, and those of them that are complete."""
    rows = [row for row in run.step_rows() if of.since_ns <= row[1] < of.until_ns]
    found = steps_of(rows, (0, 0), parts_of(run.processes))
    return rows, found, () if found.whole_run else found.windows


def _stretch(wanted: list[bool]) -> list[int]:
    """The longest stretch of places that are wanted, the last of equal ones."""
    runs = groupby(range(len(wanted)), wanted.__getitem__)
    stretches = [list(places) for one, places in runs if one]
    return max(reversed(stretches), key=len, default=[])


# --- a run of which a process stopped recording, on a full disk: its steps that are whole
# What others recorded from then on lacks rows. So the run is judged as if it had ended before the
# first step that began later or went on then.


def whole_steps(run: AnyRun) -> AnyRun:
    """`run` with the steps that had ended when its first process stopped recording, if one did."""
    agents = {process.who for process in run.processes if process.role == AGENT}
    told = [
        problem.get("real_ns")
        for problem in run.problems
        if problem.get("what") == RECORDING_STOPPED and problem.get("who") not in agents
    ]
    stopped = min((at for at in told if isinstance(at, int)), default=EVER_NS)
    if run.cut_short or (run.until_ns or EVER_NS) <= stopped:
        return run
    of = run.range or _WHOLE_RUN
    rows, _, windows = _steps_in(run, of)
    ended = [window for window in windows if window.end_ns <= stopped]
    if ended:
        later = [start for _, start, _, _ in rows if start >= ended[-1].end_ns]
        of = replace(of, until_ns=min([stopped, *later]))
    else:
        of = replace(of, until_ns=stopped, first_step=1, last_step=0)  # none
    cut = type(run)(run.path)
    cut.narrow(of, cut_short=True)
    return cut
