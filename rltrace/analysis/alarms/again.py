"""Steps whose numbers came again, and samples whose ids did."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.alarms.alarm import Said, alarm, grave, note
from rltrace.analysis.run_analysis import RunAnalysis


@alarm("restart", "steps were done again")
def steps_again(analysis: RunAnalysis) -> Iterator[Said]:
    steps = analysis.steps
    if not steps.repeated:
        return
    if len({window.process for window in steps.windows}) > 1:
        what = "step was" if steps.repeated == 1 else "steps were"
        yield grave(f"{steps.repeated} {what} done again after a restart")
        return
    what = "a step's number" if steps.repeated == 1 else f"the numbers of {steps.repeated} steps"
    says = f"{what} came again in one process, which counts as work done again"
    number = "where it is not, as each epoch counts from 0, number steps through: rltrace.step(n)"
    yield grave(f"{says}; {number}")


@alarm("ids", "ids of samples came again")
def ids_again(analysis: RunAnalysis) -> Iterator[Said]:
    """`rltrace.trace.repeated_ids`."""
    told, unclear = analysis.run.ids_that_came_again()
    found = []
    if told:
        found.append(f"{told} after it was trained on: each time is taken for another sample")
    if unclear:
        lost = "their lags, groups and rewards are unknown"
        found.append(f"{unclear} while it was generated or waited for training: {lost}")
    says = "; ".join(f"ids of samples came again, {one}" for one in found)
    if says:
        yield note(says + ". Give each sample an id of its own")
