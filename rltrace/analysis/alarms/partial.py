"""What of the run is not here.

Of a part nobody can tell what held the whole up; what a node had not shipped when it died is a
little at the end.
"""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.alarms.alarm import Said, alarm, grave, note
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.trace.run_dir import ELSEWHERE, NOT_WHOLE, PACK_LOST
from rltrace.trace.sampled import only_some


@alarm("part", "not all of it is here")
def partial(analysis: RunAnalysis) -> Iterator[Said]:
    if says := only_some(analysis.run.meta):  # as somebody wanted it so
        yield note(f"{says}: samples, their lags and groups are unknown; spans are whole")
    lost = 0
    for problem in analysis.run.problems:
        what, target, detail = (problem.get(key) for key in ("what", "target", "detail"))
        lost += what == PACK_LOST
        if what == ELSEWHERE:
            yield grave(f"{detail}: `rltrace report {target}`")
        elif what == NOT_WHOLE:
            yield note(f"{target}: {detail}")
    if lost:
        packs = f"{lost} pack{'s' * (lost > 1)} of what was shipped {'is' if lost == 1 else 'are'}"
        yield grave(f"{packs} missing or damaged, so rows may be missing")
