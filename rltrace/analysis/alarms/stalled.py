"""Steps that took far longer than the usual one (`rltrace.analysis.stalls`)."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.alarms.alarm import NAMED, Said, alarm, grave, note
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stalls import find_stalls
from rltrace.trace.vocabulary import word


@alarm("stall", "steps stalled")
def stalled(analysis: RunAnalysis) -> Iterator[Said]:
    steps = analysis.steps
    found = find_stalls(steps, analysis.breakdown)
    if found is None:
        return
    n = len(found.places)
    numbers = ", ".join(str(steps.windows[i].step) for i in found.places[:NAMED])
    dots = " …" if n > NAMED else ""
    where = "untraced time" if found.stage is None else word(found.stage)
    took = _seconds(found.took_s / n) + " each on average" * (n > 1)
    says = (
        f"{n} step{'s' * (n > 1)} ({numbers}{dots}) stalled: {took} "
        f"where {_seconds(found.usual_s / n)} is usual, most of the difference in {where}; "
        f"that cost {100 * found.lost_share:.0f} % of the time of all steps after warm-up"
    )
    yield grave(says, judged_anyway=found.left_out) if found.grave else note(says)


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
