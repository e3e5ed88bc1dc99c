"""Runs of which only a part is here: nodes that keep theirs elsewhere, nodes that were lost, and
samples that nobody wanted recorded."""

from __future__ import annotations

from rltrace.analysis.alarm import ALARM, NOTE, Alarm
from rltrace.trace.run import Run
from rltrace.trace.run_dir import ELSEWHERE, NOT_WHOLE, PACK_LOST
from rltrace.trace.sampled import only_some
from rltrace.trace.vocabulary import Stage, word

KIND = "part"
PARTIAL = (ELSEWHERE, NOT_WHOLE, PACK_LOST)
"""Problems of a run that are told by these alarms."""


def partial(run: Run, untold: frozenset[Stage]) -> list[Alarm]:
    """What of `run` is not here. Of a part nobody can tell what held the whole up; what a node had
    not shipped when it died is a little at the end. The times of stages `untold` take all samples
    (`rltrace.analysis.untold_stages`)."""
    told = {what: [p for p in run.problems if p.get("what") == what] for what in PARTIAL}
    found = _sampled(run, untold)
    for problem in told[ELSEWHERE]:
        says = f"{problem.get('detail')}: `rltrace report {problem.get('target')}`"
        found.append(Alarm(KIND, ALARM, says))
    for problem in told[NOT_WHOLE]:
        found.append(Alarm(KIND, NOTE, f"{problem.get('target')}: {problem.get('detail')}"))
    if lost := len(told[PACK_LOST]):
        what = f"{lost} pack{'s' * (lost > 1)} of what was shipped {'is' if lost == 1 else 'are'}"
        found.append(Alarm(KIND, ALARM, f"{what} missing or damaged, so rows may be missing"))
    return found


def _sampled(run: Run, untold: frozenset[Stage]) -> list[Alarm]:
    """Nothing is wrong where only some samples have rows, as somebody wanted it so; but not all can
    be told of the whole."""
    if not (says := only_some(run.meta)):
        return []
    says += (
        ": nothing is told of samples, their tokens, lags and groups, nor a wall; spans are whole"
    )
    if untold:
        names = " and ".join(word(stage) for stage in sorted(untold))
        says += f", but of {names} only samples tell: so it is unknown what held a step up"
    return [Alarm(KIND, NOTE, says)]
