"""What a test for a wall says, and the register of walls.

A wall is a function of a module here, and a file of moves (`rltrace/analysis/data/moves`).
"""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats import confidence_interval
from rltrace.analysis.stats.confidence_interval import Spread, spread, within
from rltrace.analysis.timeline.stage_chains import Seconds
from rltrace.trace.vocabulary import Stage

ROLLOUT = "rollout"
ENV_REWARD = "env/reward"
LEARNER = "training"
WEIGHTS = "weight sync"
FRESHNESS = "staleness"
TAIL = "long tail"
SPARSE_REWARD = "sparse reward"
OBSERVABILITY = "token fidelity"

FEWEST_STEPS = 3
ALIKE = 0.05  # walls whose costs differ by less than this part of the step bind together

LIKELY, WEAK, CANNOT_TELL = "likely", "weak", "cannot tell"
HOW_SURE = {LIKELY: LIKELY, WEAK: "maybe", CANNOT_TELL: CANNOT_TELL}  # as people are told

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
        return not math.isnan(self.share)

    @property
    def half_width(self) -> float:
        """Half of the interval; 0 where there is none."""
        half = (self.high - self.low) / 2
        return 0.0 if math.isnan(half) else half

    def wider(self, noise: float) -> Cost:
        """The same with an interval that holds an independent error of that half-width, too."""
        if not noise:
            return self
        half = math.hypot(self.half_width, noise)
        return Cost(self.share, max(0.0, self.share - half), min(1.0, self.share + half), self.n)

    def scaled(self, part: float, least: float, most: float) -> Cost:
        """A part of it, which is between these bounds."""
        return Cost(self.share * part, self.low * least, self.high * most, self.n)

    def as_figure(self, name: str) -> Figure:
        return Figure(name, self.share, "share", self.n, self.low, self.high)


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
    Where not all was seen the cost is `cost_at_most` (else NaN). `symptom` is what the job's
    owner sees where the wall binds, `because` how the cost came about; `method` tells it of stages
    (`attribute`).
    """

    name: str
    confidence: str
    cost: Cost
    symptom: str
    because: str
    evidence: tuple[Figure, ...]
    missing: tuple[str, ...]
    cost_at_most: float = math.nan
    method: str = ""


def cannot_tell(
    name: str, symptom: str, because: str, *missing: str,
    evidence: tuple[Figure, ...] = (), at_most: float = 1.0,
) -> Wall:  # fmt: skip
    return Wall(name, CANNOT_TELL, UNKNOWN, symptom, because, evidence, missing, at_most)


def too_few(steps: int) -> str:
    """Why so many steady steps tell nothing; empty where they are enough."""
    if steps >= FEWEST_STEPS:
        return ""
    return f"{steps} steady step{'s' * (steps != 1)}, at least {FEWEST_STEPS} are needed"


def share_of_steps(seconds: Seconds, steps_s: Seconds) -> Cost:
    """Seconds of each step as a share of all of them."""
    whole = float(steps_s.sum())
    if not whole:
        return UNKNOWN
    of = spread(seconds / (whole / len(steps_s)))
    return Cost(float(seconds.sum()) / whole, within(of.low), within(of.high), of.n)


def figure(name: str, of: Spread, unit: str) -> Figure:
    return Figure(name, of.mean, unit, of.n, of.low, of.high)


def proportion(part: float, n: int) -> Cost:
    """A share that was found in `n` independent cases, with its interval."""
    found = confidence_interval.proportion(part, n)
    return cost_of(found, n if found.known else 0)


def cost_of(share: confidence_interval.Interval, n: int) -> Cost:
    return Cost(share.value, share.low, share.high, n)


Test = Callable[[RunAnalysis], Wall]


@dataclass(frozen=True)
class Registered:
    """A wall, its test, and the stages that it takes time of: all of it, or a `part`, where another
    wall stands for the stage. A wall of no stage takes tokens."""

    name: str
    stages: tuple[Stage, ...]
    part: bool
    test: Test


_FOUND: dict[str, Registered] = {}


def register(name: str, *stages: Stage, part: bool = False) -> Callable[[Test], Test]:
    """Makes a function the test of a wall. Errors: `ValueError` where name or stage is taken."""
    others = [one for one in _FOUND.values() if not one.part and not part]
    if name in _FOUND or any({*one.stages} & {*stages} for one in others):
        raise ValueError(f"there is a wall of that name or of these stages already: {name}")

    def kept(test: Test) -> Test:
        _FOUND[name] = Registered(name, stages, part, test)
        return test

    return kept


@cache
def walls() -> Mapping[str, Registered]:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        import_module(f"{__package__}.{module.name}")
    return _FOUND


def wall_names() -> tuple[str, ...]:
    return tuple(walls())


def stages_of(wall: str) -> tuple[Stage, ...]:
    return walls()[wall].stages


@cache
def wall_of() -> Mapping[Stage, str]:
    """The wall that each stage stands for; other stages stand for none."""
    return {stage: one.name for one in walls().values() if not one.part for stage in one.stages}
