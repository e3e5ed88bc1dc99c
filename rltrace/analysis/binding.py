"""Which stage binds, as far as one trace can tell.

The candidate is the stage with the most exposed time. That is evidence and no proof: whether the
step really follows it is what delaying the stage in an experiment would show, so the
best confidence given here is "likely".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.spread import Spread, spread
from rltrace.analysis.stages import Breakdown, StageRow
from rltrace.analysis.steps import Steps
from rltrace.trace.vocabulary import Stage

FEWEST_STEPS = 3
_AGREEING_SHARE = 0.8

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
    time in `agreeing_steps` of `steps`; `margin_s` is its lead over `runner_up`, step by step."""

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


def find_binding(steps: Steps, breakdown: Breakdown, rows: tuple[StageRow, ...]) -> Binding:
    """The verdict on the steady steps of a run."""
    steady = list(steps.steady)
    n = 0 if steps.whole_run else len(steady)
    work = sorted(
        (row for row in rows if row.stage is not Stage.WAIT and row.exposed_s.n),
        key=lambda row: -row.exposed_s.mean,
    )
    if not work or not work[0].exposed_s.mean > 0:
        because = "no stage was seen" if not work else "no stage took any time within the steps"
        return _nothing(because, n)
    first, second = work[0], work[1] if len(work) > 1 else None
    exposed = breakdown.exposed_s[steady]
    mine = exposed[:, first.stage]
    others = exposed[:, [row.stage for row in work[1:]]] if second else np.zeros((len(mine), 1))
    margin = spread(mine - exposed[:, second.stage]) if second else spread(mine)
    agreeing = int((mine > others.max(axis=1)).sum())
    total_s = float(breakdown.steps_s[steady].sum())
    idle_s = breakdown.unattributed_s[steady] + exposed[:, Stage.WAIT]
    uncovered = float(idle_s.sum()) / total_s if total_s else float("nan")
    because = ""
    if steps.whole_run:
        because = "no step was recorded, so the run is one sample"
    elif n < FEWEST_STEPS:
        because = f"{n} steady step{'s' * (n != 1)}, at least {FEWEST_STEPS} are needed"
    elif uncovered > first.share:
        because = f"{100 * uncovered:.0f} % of the step is in no stage, more than in any one stage"
    clear = margin.low > 0 and agreeing >= _AGREEING_SHARE * n
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
    )


def _nothing(because: str, steps: int) -> Binding:
    nan = float("nan")
    return Binding(None, "", INSUFFICIENT, because, nan, 0, steps, None, spread([]), nan)
