"""A run of which a process stopped recording, on a full disk: its steps that are whole.

What others recorded from then on lacks rows, and figures of it are of nothing that happened. So the
run is judged as if it had ended before the first step that began later or went on then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from rltrace.analysis.devices import AGENT
from rltrace.analysis.steps import steps_of
from rltrace.trace.narrowed import Range
from rltrace.trace.real_times import EVER_NS
from rltrace.trace.run_dir import RECORDING_STOPPED

if TYPE_CHECKING:
    from rltrace.trace.run import Run

    AnyRun = TypeVar("AnyRun", bound=Run)

_WHOLE_RUN = Range(0, EVER_NS, first_step=-1)
_NO_STEP = (1, 0)


def stopped_ns(run: Run) -> int | None:
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
