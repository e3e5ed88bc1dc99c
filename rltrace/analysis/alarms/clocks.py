"""What no order of events explains: clocks of nodes that could not be aligned, or that were set
while the job ran; versions that two sides count differently; steps whose numbers came again, and
samples whose ids did."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.alarms.alarm import NOTE, Said, alarm, counted, grave, note
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.trajectories.samples import TRAINED_SAMPLES


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
    number = "if each epoch counts from 0, number the steps through: rltrace.step(n)"
    yield grave(f"{says}; {number}")


@alarm("ids", "ids of samples came again")
def ids_again(analysis: RunAnalysis) -> Iterator[Said]:
    """`rltrace.trace.read.trajectory_ids`."""
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


_ROWS = " union all ".join(
    ["select sum(backwards) as wrong, sum(spans) as n from span_stages"]
    + [
        "select count(*) filter (end_ns >= 0 and end_ns < start_ns), count(*) "
        f"from raw_{table} where start_ns > 0"
        for table in ("trajectories", "rewards", "syncs")
    ]
)
counted(
    "clocks", "clocks are out of order",
    f"select sum(wrong)::bigint, sum(n)::bigint from ({_ROWS})",
    "{n} of {of} rows end before they begin and are left out: clocks out of order", severity=NOTE,
)  # fmt: skip
counted(
    "versions", "versions are out of order",
    f"""{TRAINED_SAMPLES}
        select count(*) filter (version < first_version), count(*)
        from trained where version >= 0 and first_version is not null""",
    "{n} of {of} samples were trained on by an older version than generated them: learner and "
    "engines count versions differently, so their lag says nothing",
    severity=NOTE,
)  # fmt: skip
