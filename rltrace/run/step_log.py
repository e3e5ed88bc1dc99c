"""Writes the summary of each step beside what the job itself logs with TensorBoard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rltrace.analysis.live.kept_tables import SPARING
from rltrace.analysis.live.snapshot import StepDone
from rltrace.analysis.live.state import LiveState
from rltrace.importers.event_files import MARK
from rltrace.report.damage_lines import dropped_lines
from rltrace.report.event_file import EventFile
from rltrace.report.live_line import scalars
from rltrace.run.reading import check_followed
from rltrace.trace.errors import RltraceError, WrongUsage

FOLDER = "rltrace"
_EVERY_S = 2.0
_LAST_STEPS = 64  # that may be completed from one look to the next
_ALL_STEPS = 1 << 30
_NEWEST = 8  # steps of which something may still come in


def log_steps(
    path: Path,
    logdir: Path,
    waits: Callable[[float], bool],
    say: Callable[[str], None] = lambda said: None,
) -> tuple[Path, int]:
    """Logs the steps of the run in `path` until the job has ended, or `waits`, which is given
    seconds, says to; the event file and the number of steps. `logdir` is where the job logs; `say`
    is told of steps that were dropped. Errors: `RltraceError` where it does not, where it cannot be
    written, or there is no run, or nothing of it can be read."""
    own = logdir / FOLDER
    if not any(own not in found.parents for found in logdir.rglob(f"*{MARK}*")):
        raise WrongUsage(
            f"{logdir} holds no TensorBoard log: give the folder that the job logs to, once it has "
            "begun to"
        )
    try:
        with EventFile(own) as file:
            return file.path, _log(path, file, waits, say)
    except OSError as error:
        raise RltraceError(f"{own} cannot be written: {error.strerror or error}") from None


def _log(
    path: Path, file: EventFile, waits: Callable[[float], bool], say: Callable[[str], None]
) -> int:
    written = Written(file)
    state = LiveState(path, _ALL_STEPS)
    first = state.snapshot()
    check_followed(first.job, bool(_steps(state)))
    if not first.job.is_over:
        steps = _steps(state)
        written.add(steps[:-_NEWEST], settled=True)
        written.add(steps)
        state = LiveState(path, _LAST_STEPS, SPARING)
        while not state.snapshot().job.is_over and not waits(_EVERY_S):
            state.poll()
            written.add(_steps(state))
        state.poll()
    written.add(_steps(state), settled=True)
    for line in dropped_lines(state.snapshot().dropped):
        say(line)
    return written.steps


def _steps(state: LiveState) -> tuple[StepDone, ...]:
    window = state.snapshot().window
    return window.recent if window else ()


class Written:
    """The steps that were written, in the order of their ends. One that comes late, when a later
    one was written, is followed by all those again: TensorBoard takes a step back for a restart,
    and drops what it knows of the steps after it."""

    def __init__(self, file: EventFile) -> None:
        self._file = file
        self.steps = 0
        self._until_ns = 0
        self._ends_ns: dict[int, int] = {}  # of those that were written, by their number
        self._seen_ns: set[int] = set()

    def add(self, steps: tuple[StepDone, ...], settled: bool = False) -> None:
        """Writes those that are new. What belongs to a step may come in a little after its end, so
        it is written at the second look at it, or once all is `settled`."""
        late = False
        for step in steps:
            known = self._is_written(step)
            new = not known and (settled or step.end_ns in self._seen_ns)
            if new or (known and late):
                self._file.add(max(step.step, 0), step.end_ns, scalars(step))
            if new:
                late = late or step.end_ns < self._until_ns
                self._until_ns = max(self._until_ns, step.end_ns)
                self._ends_ns[step.step] = step.end_ns
                self.steps += 1
        self._seen_ns = {step.end_ns for step in steps}

    def _is_written(self, step: StepDone) -> bool:
        """Whether this very step was: one that is done again after a restart ends later by its
        whole length at least, while clocks of other nodes are known better from look to look."""
        end_ns = self._ends_ns.get(step.step)
        return end_ns is not None and abs(step.end_ns - end_ns) <= step.seconds * 1e9 / 2
