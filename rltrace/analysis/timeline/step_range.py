"""A run as if it had some of its steps only: those asked for, or those that are whole."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

from rltrace.analysis.timeline.steps import steps_of
from rltrace.trace.errors import CANNOT_TELL, WRONG_USAGE, RltraceError, WrongUsage
from rltrace.trace.job_devices import AGENT
from rltrace.trace.read.row_filters import EVER_NS, Range
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.run_dir import RECORDING_STOPPED

AnyRun = TypeVar("AnyRun", bound=OpenedRun)

_WHOLE_RUN = Range(0, EVER_NS, first_step=-1)
_NO_STEP = (1, 0)
_RANGE = re.compile(r"\s*(\d*)\s*(?:\.\.\s*(\d*)\s*)?")


@dataclass(frozen=True)
class StepSelection:
    """Which steps: those from `first` to `last` (None: no bound), or the `newest` so many complete
    ones and what came after them."""

    first: int | None = None
    last: int | None = None
    newest: int | None = None


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


def narrow(run: OpenedRun, asked: StepSelection) -> None:
    """Narrows a run to the steps asked for. Errors: `RltraceError` where it has none of them (wrong
    usage), or no complete one of which to take the newest (cannot tell)."""
    rows = run.step_rows()
    found = steps_of(rows, (0, 0))
    windows = () if found.whole_run else found.windows
    begun = sorted((start, number) for number, start in found.in_progress)
    if not windows and not begun:
        said = _dropped(run)
        code = WRONG_USAGE if asked.newest is None else CANNOT_TELL
        raise RltraceError(f"{run.path} has no steps, so none can be chosen{said}", code)
    if asked.newest is not None:
        if not windows:
            raise RltraceError(f"{run.path} has no complete step yet", CANNOT_TELL)
        since = windows[-asked.newest :][0].start_ns
        run.narrow(replace(_WHOLE_RUN, since_ns=since))
        return
    low = 0 if asked.first is None else asked.first
    high = EVER_NS if asked.last is None else asked.last
    chosen = _stretch([low <= window.step <= high for window in windows])
    going = [start for start, number in begun if low <= number <= high]
    if not chosen and not going:
        known = [window.step for window in windows] + [number for _, number in begun]
        said = f"{min(known)} to {max(known)}" if len(known) > 1 else str(known[0])
        said += _dropped(run)
        raise WrongUsage(f"{run.path} has none of these steps: it has {said}")
    starts = [windows[place].start_ns for place in chosen] or going
    # Until the first step after them began; without an end where none did.
    later = [window.start_ns for window in windows if window.start_ns > starts[-1]]
    later += [start for start, number in begun if start > starts[-1] and number > high]
    run.narrow(Range(starts[0], min(later, default=EVER_NS), low, high))


def _dropped(run: OpenedRun) -> str:
    """That older ones were dropped, where some were."""
    return "" if run.dropped is None else "; the oldest were dropped to keep the run small"


def _stretch(wanted: list[bool]) -> list[int]:
    """The places that follow each other and are wanted: the longest stretch, of equal ones the
    last. After a restart steps come again."""
    runs = groupby(range(len(wanted)), wanted.__getitem__)
    stretches = [list(places) for one, places in runs if one]
    return max(reversed(stretches), key=len, default=[])


# --- a run of which a process stopped recording, on a full disk: its steps that are whole
# What others recorded from then on lacks rows, and figures of it are of nothing that happened. So
# the run is judged as if it had ended before the first step that began later or went on then.


def stopped_ns(run: OpenedRun) -> int | None:
    """When the first process of the job stopped recording, Unix ns; None where none did. An agent
    only reads counters."""
    agents = {process.who for process in run.processes if process.role == AGENT}
    told = [
        problem.get("real_ns")
        for problem in run.problems
        if problem.get("what") == RECORDING_STOPPED and problem.get("who") not in agents
    ]
    return min((at for at in told if isinstance(at, int)), default=None)


def whole_steps(run: AnyRun) -> AnyRun:
    """`run` opened again with what began before its first process stopped recording, in steps that
    had ended by then; `run` itself where none stopped. Without such a step it has none at all."""
    if run.cut_short:
        return run
    stopped = stopped_ns(run)
    if stopped is None or (run.until_ns or EVER_NS) <= stopped:
        return run
    of = run.range or _WHOLE_RUN
    rows = [row for row in run.step_rows() if of.since_ns <= row[1] < of.until_ns]
    found = steps_of(rows, (0, 0))
    windows = () if found.whole_run else found.windows
    ended = [window for window in windows if window.end_ns <= stopped]
    cut = type(run)(run.path)
    if not ended:
        first, last = _NO_STEP
        cut.narrow(replace(of, until_ns=stopped, first_step=first, last_step=last), cut_short=True)
        return cut
    later = [start for _, start, _, _ in rows if start >= ended[-1].end_ns]
    cut.narrow(replace(of, until_ns=min([stopped, *later])), cut_short=True)
    return cut
