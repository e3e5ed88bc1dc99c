"""Which stage binds, as far as one trace can tell.

The candidate is the stage with the most exposed time. That is evidence and no proof, which only
delaying the stage in an experiment would give: so the best confidence here is "likely".

A stage that is not behind the candidate by more than chance, or that leads in more of the steps, is
*tied* with it, unless it leads in no step and is surely immaterial: a candidate that varies makes
no wall of it. Where the difference is known to be small beside the step, they bind together;
else the steps recorded cannot tell them apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.chains import Seconds
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stages import Breakdown, StageRow
from rltrace.analysis.stats.spread import Spread, spread
from rltrace.trace.sampled import only_some
from rltrace.trace.vocabulary import Stage

FEWEST_STEPS = 3
_AGREEING_SHARE = 0.8
ALIKE = 0.05
"""Stages whose difference is surely less than this part of the step are alike, and one whose
exposed time is surely less is immaterial."""

LIKELY, WEAK, INSUFFICIENT = "likely", "weak", "insufficient evidence"

RESOURCE_OF: dict[Stage, str] = {
    Stage.ROLLOUT: "rollout decode",
    Stage.ENV: "env/reward latency",
    Stage.REWARD: "env/reward latency",
    Stage.REFERENCE: "learner FLOPs + memory",
    Stage.LOGPROB: "learner FLOPs + memory",
    Stage.VALUE: "learner FLOPs + memory",
    Stage.TRAIN: "learner FLOPs + memory",
    Stage.SYNC: "weight movement",
    Stage.SWITCH: "weight movement",
}
"""The resource that binds where the stage does; other stages stand for none."""


@dataclass(frozen=True)
class Binding:
    """The verdict. `stage` is the candidate (None: there is none), `because` says why the evidence
    is insufficient (empty otherwise). `share` is exposed / step; the candidate has the most exposed
    time in `agreeing_steps` of `steps`; `margin_s` is its lead over `runner_up`, step by step.
    `tied` are the stages that may bind as well as it: with "likely" they bind together, with "weak"
    nobody knows which. `led_steps` is in how many steps each stage had the most exposed time."""

    stage: StageRow | None
    resource: str
    confidence: str
    because: str
    share: float
    agreeing_steps: int
    steps: int
    runner_up: StageRow | None
    margin_s: Spread
    uncovered_share: float
    tied: tuple[StageRow, ...]
    led_steps: dict[str, int]


def too_few(steps: int) -> str:
    """Why so many steady steps tell nothing; empty where they are enough."""
    if steps >= FEWEST_STEPS:
        return ""
    return f"{steps} steady step{'s' * (steps != 1)}, at least {FEWEST_STEPS} are needed"


def find_binding(analysis: RunAnalysis) -> Binding:
    """The verdict on the steady steps of a run. There is no candidate where exposed times are not
    known."""
    steps, breakdown, rows = analysis.steps, analysis.breakdown, analysis.stages
    doubt = only_some(analysis.run.meta)
    steady, n = list(steps.steady), len(analysis.steady)
    if breakdown.untold:
        return _nothing(doubt, n)
    work = sorted(
        (row for row in rows if row.stage is not Stage.WAIT and row.exposed_s.n),
        key=lambda row: -row.exposed_s.mean,
    )
    if not work or not work[0].exposed_s.mean > 0:
        because = "no stage was seen" if not work else "no stage took any time within the steps"
        return _nothing(because, n)
    first, second = work[0], work[1] if len(work) > 1 else None
    exposed = breakdown.exposed_s[steady]
    led = _led_steps(exposed, work)
    agreeing = led[first.name]
    total_s = float(breakdown.steps_s[steady].sum())
    uncovered = idle_share(breakdown, steady)
    because = ""
    if steps.whole_run:
        because = "no step was recorded, so the run is one sample"
    elif n < FEWEST_STEPS:
        because = too_few(n)
    elif uncovered > first.share:
        because = f"{100 * uncovered:.0f} % of the step is in no stage, more than in any one stage"
    because = doubt or because
    margins = {row.name: spread(exposed[:, first.stage] - exposed[:, row.stage]) for row in work}
    margin = margins[second.name] if second else spread(exposed[:, first.stage])
    alike = ALIKE * total_s / len(steady)
    rivals = [row for row in work[1:] if led[row.name] or not row.exposed_s.high < alike]
    tied = [row for row in rivals if not margins[row.name].low > 0 or led[row.name] > agreeing]
    if tied:
        clear = all(-alike < margins[r.name].low and margins[r.name].high < alike for r in tied)
    else:
        ahead = margin.low > 0 or second not in (None, *rivals)
        clear = ahead and agreeing >= _AGREEING_SHARE * n
    return Binding(
        stage=first,
        resource=RESOURCE_OF.get(first.stage, ""),
        confidence=INSUFFICIENT if because else LIKELY if clear else WEAK,
        because=because,
        share=first.share,
        agreeing_steps=agreeing,
        steps=len(steady),
        runner_up=second,
        margin_s=margin,
        uncovered_share=uncovered,
        tied=() if because else tuple(tied),
        led_steps=led,
    )


def idle_share(breakdown: Breakdown, places: list[int]) -> float:
    """The part of these steps in no stage but waiting; NaN where they have no length."""
    total_s = float(breakdown.steps_s[places].sum())
    idle_s = breakdown.unattributed_s[places] + breakdown.exposed_s[places, Stage.WAIT]
    return float(idle_s.sum()) / total_s if total_s else math.nan


def _led_steps(exposed: Seconds, work: list[StageRow]) -> dict[str, int]:
    """In how many steps each stage had more exposed time than any other."""
    times = exposed[:, [row.stage for row in work]]
    most = times.max(axis=1)
    alone = (times == most[:, None]).sum(axis=1) == 1
    counts = ((times == most[:, None]) & alone[:, None]).sum(axis=0)
    return {row.name: int(count) for row, count in zip(work, counts, strict=True)}


def _nothing(because: str, steps: int) -> Binding:
    nan = float("nan")
    return Binding(None, "", INSUFFICIENT, because, nan, 0, steps, None, spread([]), nan, (), {})
