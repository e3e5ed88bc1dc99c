"""What a gate says: one finding for each condition, and the judgement of them all."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.gate.metrics import Condition
from rltrace.analysis.stats.interval import UNKNOWN, Interval
from rltrace.trace.errors import ANSWER_IS_NO, CANNOT_TELL, OK

PASS, REGRESSION, UNSURE = "pass", "regression", "cannot tell"

_EXIT = {PASS: OK, REGRESSION: ANSWER_IS_NO, UNSURE: CANNOT_TELL}


@dataclass(frozen=True)
class StageChange:
    """What a stage (or "wait", "untraced", "between steps") did to the step. `before_s` and
    `after_s` are exposed seconds a step in the baseline and the run, `difference_s` between them;
    `difference_share` is that as a share of the baseline's step (0.04: the step is 4 % longer by
    it), both with 95 % intervals."""

    name: str
    before_s: float
    after_s: float
    difference_s: Interval
    difference_share: Interval


@dataclass(frozen=True)
class FactorChange:
    """A factor of goodput in the baseline and the run, over the settled steps; `ratio` is run over
    baseline with a 95 % interval. `once`: it is measured once a run, so that nothing tells how much
    of its change is chance."""

    name: str
    before: float
    after: float
    ratio: Interval
    once: bool = False


@dataclass(frozen=True)
class Drift:
    """A property of the work of a step, which is none of its speed: `ratio` is run over baseline,
    with a 95 % interval. `changed`: the work surely differs in it, by more than 2 %."""

    name: str
    before: float
    after: float
    ratio: Interval
    changed: bool


@dataclass(frozen=True)
class Finding:
    """One condition and what became of it: `outcome` is "pass", "regression" or "cannot tell", and
    `because` says why in one sentence.

    `value` and `baseline` are in `unit`, per step or run as `rltrace.analysis.gate.metrics` says
    (NaN: unknown, or of no baseline). `ratio` is run over baseline with its 95 % interval;
    `worse_share` is the same change as a share for the worse, 0.05 for 5 % longer steps or 5 % less
    goodput, as `limit` is (negative: better). `p_value` is that of "not worse than the baseline at
    all", as it was measured, `p_adjusted` after Holm's correction for all conditions; NaN where
    none is tested. `normalised` says what the work of the two was made equal by (empty: nothing).
    Where it cannot be told, `more_steps` and `more_runs` would tell if the noise stays as it is
    (None: no number of them, or not known); baseline runs are `more_baselines`.
    """

    condition: Condition
    outcome: str
    because: str
    unit: str = ""
    value: float = math.nan
    baseline: float = math.nan
    ratio: Interval = UNKNOWN
    worse_share: Interval = UNKNOWN
    limit: float = math.nan
    p_value: float = math.nan
    p_adjusted: float = math.nan
    normalised: str = ""
    more_steps: int | None = None
    more_runs: int | None = None
    more_baselines: int | None = None
    stage: StageChange | None = None
    factor: FactorChange | None = None


@dataclass(frozen=True)
class Judgement:
    """All findings, in the order of the conditions. `steps` are the settled steps of each judged
    run and `baseline_steps` those of each run of the baseline; `warmup` and `baseline_warmup` how
    many before them were left out. `paired`: the same step numbers were compared. `notes` are
    sentences that a reader should know. `alpha` is the false-alarm rate over all conditions.
    `alarms` has a sentence for each judged run with an alarm: whatever its figures, it does not
    pass."""

    findings: tuple[Finding, ...]
    steps: tuple[int, ...]
    baseline_steps: tuple[int, ...]
    warmup: tuple[int, ...]
    baseline_warmup: tuple[int, ...]
    paired: bool
    stages: tuple[StageChange, ...]
    factors: tuple[FactorChange, ...]
    drift: tuple[Drift, ...]
    notes: tuple[str, ...]
    alpha: float
    alarms: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """A regression of any, or a run with an alarm, is one of all; else what cannot be told
        of any."""
        if self.alarms:
            return REGRESSION
        outcomes = {finding.outcome for finding in self.findings}
        return next((one for one in (REGRESSION, UNSURE) if one in outcomes), PASS)

    @property
    def exit_code(self) -> int:
        """0 pass, 1 regression, 3 cannot tell."""
        return _EXIT[self.outcome]
