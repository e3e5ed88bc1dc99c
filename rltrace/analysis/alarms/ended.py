"""How the job ended, where not by itself, and steps that an exception left."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from rltrace.analysis.alarms.alarm import CRASH, LOST_SHARE, NAMED, Said, alarm, grave, note
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.timeline.steps import Steps, step_errors
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.run_dir import PROCESS_FAILED

_BY_HAND = {signal.SIGINT, signal.SIGTERM}


@alarm(CRASH, "it failed")
def crash(analysis: RunAnalysis) -> Iterator[Said]:
    run, steps = analysis.run, analysis.steps
    code = run.meta.get("exit_code")
    done = 0 if steps.whole_run else len(steps.windows)
    plural = f"{done} complete step{'s' * (done != 1)}"
    when = f"after {plural}" if done else "before its first step was complete"
    if steps.in_progress:
        when = f"in step {steps.in_progress[-1][0]}, {when}"
    if not isinstance(code, int):
        # Its agent wrote the end down, or nobody was left to do so and its processes are gone.
        seen = run.meta.get("end_real_ns") is not None
        why = "rltrace wrap was killed" if seen else "killed, or the machine went down"
        says = f"the job ended {when}; how was not recorded: {why}"
        by_wrap = not run.meta.get("imported") and isinstance(run.meta.get("command_pid"), int)
        if by_wrap and (seen or run.goes_on is False):
            yield note(says) if done else grave(says)
        return
    if code == 0:
        return
    number = -code if code < 0 else code - 128
    how = f"signal {number}" if code < 0 else f"exit code {code}"
    if number in list(signal.Signals):
        how = f"{how}, {signal.Signals(number).name}"
    asked = run.meta.get("signals")
    by_hand = [s for s in asked if s in _BY_HAND] if isinstance(asked, list) else []
    if by_hand and number not in _BY_HAND:  # it took Ctrl-C, and ended with a code of its own
        how = f"{signal.Signals(by_hand[0]).name}, then {how}"
    how += f", {error}" if (error := _exception(run, steps)) else ""
    by_others = number in _BY_HAND or by_hand
    yield (
        note(f"the job was ended from outside ({how})")
        if by_others
        else grave(f"the job failed ({how}) {when}")
    )


def _exception(run: OpenedRun, steps: Steps) -> str:
    """What ended the job's own process, or the step in which it was; empty: none is known."""
    own = PROCESS_FAILED, str(run.meta.get("command_pid"))
    for problem in run.problems:
        if (problem.get("what"), problem.get("target")) == own:
            return str(problem.get("detail"))
    return step_errors(run).get(steps.in_progress[-1][0], "") if steps.in_progress else ""


@alarm("failed steps", "steps failed")
def failed(analysis: RunAnalysis) -> Iterator[Said]:
    """Steps that an exception left, and the job went on: they are in no figure of a step."""
    run, steps = analysis.run, analysis.steps
    numbers = [number for number, _, _ in steps.failed]
    if not numbers:
        return
    errors = step_errors(run)
    known = [errors[number] for number in numbers if number in errors]
    why = f" ({known[0]})" if known else ""
    begun = len(numbers) + (0 if steps.whole_run else len(steps.windows))
    shown = ", ".join(map(str, numbers[:NAMED])) + " …" * (len(numbers) > NAMED)
    says = f"{len(numbers)} of {begun} steps ({shown}) failed{why} and are left out of all figures"
    yield grave(says) if len(numbers) >= LOST_SHARE * begun else note(says)
