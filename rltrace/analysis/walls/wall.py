"""What a test for a wall says: its cost, its evidence in figures, and what cannot be told."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rltrace.analysis.chains import Seconds
from rltrace.analysis.spread import Spread, spread

if TYPE_CHECKING:
    from rltrace.analysis.composition import Composition
    from rltrace.analysis.critical_path import CriticalPath
    from rltrace.analysis.devices import Devices
    from rltrace.analysis.freshness import Freshness
    from rltrace.analysis.goodput import Goodput
    from rltrace.analysis.pace import Pace
    from rltrace.analysis.probe import Probe
    from rltrace.analysis.stages import Breakdown, StageRow
    from rltrace.analysis.staleness import Staleness
    from rltrace.analysis.steps import Steps
    from rltrace.analysis.syncs import Syncs
    from rltrace.analysis.tail import Tail
    from rltrace.analysis.walls.captured import Captured
    from rltrace.analysis.whatif.workload import Workload
    from rltrace.trace.run import Run

ROLLOUT = "rollout decode"
ENV_REWARD = "env/reward latency"
LEARNER = "learner FLOPs + memory"
WEIGHTS = "weight movement"
FRESHNESS = "freshness"
TAIL = "long-tail skew"
SPARSE_REWARD = "sparse reward"
OBSERVABILITY = "agent observability"

NAMES = (
    ROLLOUT, ENV_REWARD, LEARNER, WEIGHTS, FRESHNESS, TAIL, SPARSE_REWARD, OBSERVABILITY,
)  # fmt: skip
"""All walls, as the playbook names them."""

LIKELY, WEAK, CANNOT_TELL = "likely", "weak", "cannot tell"

SAY_STEPS = "`--hook module:function=step`, or `rltrace.step(n)` in the loop"
"""What a run without any step lacks. A longer one would have none either."""


@dataclass(frozen=True)
class Cost:
    """Share of the goodput that a wall takes, 0 to 1, with a 95 % interval (NaN: unknown; bounds
    NaN where `n`, steps or groups, is below two)."""

    share: float
    low: float
    high: float
    n: int

    @property
    def known(self) -> bool:
        """Whether there is a figure."""
        return not math.isnan(self.share)

    @property
    def half_width(self) -> float:
        """Half of the interval; 0 where there is none."""
        half = (self.high - self.low) / 2
        return 0.0 if math.isnan(half) else half


UNKNOWN = Cost(math.nan, math.nan, math.nan, 0)
NONE = Cost(0.0, 0.0, 0.0, 0)


@dataclass(frozen=True)
class Figure:
    """One figure of evidence. `low` and `high` are a 95 % interval of it, NaN where there is none;
    `n` is how many values it is made of. `unit`: "s", "share", "tokens/s", "GB/s", ..."""

    name: str
    value: float
    unit: str
    n: int
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Wall:
    """The answer of a test. `confidence` is "likely", "weak" or "cannot tell"; then `missing` says
    which hook or setting would tell (it may also name what would sharpen an answer that stands).
    `symptom` is what the job's owner sees where the wall binds, `because` how the cost came about.
    """

    name: str
    confidence: str
    cost: Cost
    symptom: str
    because: str
    evidence: tuple[Figure, ...]
    missing: tuple[str, ...]

    def but(self, confidence: str) -> Wall:
        """The same with another confidence."""
        return replace(self, confidence=confidence)


@dataclass(frozen=True)
class Seen:
    """What the tests look at: the run and what the other parts of the analysis say of it. `kept` is
    what was captured of the samples that were trained on; `workload` is None where it cannot be
    told; `overlap_known` is not the case of a log that tells durations only, `followed` is
    the critical path where it tells more than exposed time, `path` wherever it is known,
    `overlap_s` how long the chains ran beside each other by step, as far as that bounds a cost,
    `probe` is None where no stage was delayed, and `pace` where no queues lie between the roles."""

    run: Run
    steps: Steps
    breakdown: Breakdown
    stages: tuple[StageRow, ...]
    composition: Composition | None
    tail: Tail
    staleness: Staleness
    freshness: Freshness
    syncs: Syncs | None
    goodput: Goodput | None
    devices: Devices
    kept: Captured
    workload: Workload | None
    overlap_known: bool
    followed: CriticalPath | None
    path: CriticalPath | None
    overlap_s: Seconds
    probe: Probe | None
    pace: Pace | None

    @property
    def steady(self) -> list[int]:
        """Places of the steady steps; none where the run has no steps."""
        return [] if self.steps.whole_run else list(self.steps.steady)

    @property
    def steps_s(self) -> Seconds:
        """Lengths of the steady steps."""
        lengths: Seconds = self.breakdown.steps_s[self.steady]
        return lengths


def share_of_steps(seconds: Seconds, steps_s: Seconds) -> Cost:
    """Seconds of each step as a share of all of them."""
    whole = float(steps_s.sum())
    if not len(steps_s) or not whole:
        return UNKNOWN
    mean_s = whole / len(steps_s)
    of = spread(seconds / mean_s)
    return Cost(float(seconds.sum()) / whole, max(0.0, of.low), min(1.0, of.high), of.n)


def figure(name: str, of: Spread, unit: str) -> Figure:
    """A mean with its interval."""
    return Figure(name, of.mean, unit, of.n, of.low, of.high)


def proportion(part: float, n: int) -> Cost:
    """A share that was found in `n` independent cases, with Wilson's 95 % interval."""
    if n <= 0 or math.isnan(part):
        return UNKNOWN
    z = 1.96
    middle = (part + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(part * (1 - part) / n + z * z / (4 * n * n))
    return Cost(part, max(0.0, middle - half), min(1.0, middle + half), n)
