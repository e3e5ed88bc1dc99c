"""Triage: rough seconds of the stages of a step in, the step of each placement, what binds and the
first fix out. For a first look and an interview; a trace says what these seconds hide.

The step is composed as elsewhere here: stages that take turns add up; where actors and learner run
beside each other the longer chain counts, and the part of weight movement that is not hidden. A
wall costs what the step would be shorter without it: w of a chain A beside a chain L costs
max(A, L) - max(A - w, L), so the largest single stage is not always the wall.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from rltrace.analysis.binding import ALIKE, RESOURCE_OF
from rltrace.analysis.plan.hardware import check_limits
from rltrace.analysis.playbook import Move, moves
from rltrace.analysis.walls.rank import BINDS
from rltrace.analysis.walls.wall import TAIL
from rltrace.analysis.whatif.predict import NO_GAIN, SLOWER, Prediction, predictor
from rltrace.analysis.whatif.stated import stated
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.vocabulary import Stage, word

PLACEMENTS = ("colocated", "one-step-off", "async")


@dataclass(frozen=True)
class Stages:
    """Seconds a step. `rollout` ends with the longest sample; `throughput` is what its work takes
    at the rate of full engines (NaN: the same). `overlap` is the part of an update of weights that
    other work hides where there is other work. `reference_side`: "learner" or "actor"."""

    rollout: float
    reward: float = 0.0
    env: float = 0.0
    reference: float = 0.0
    logprob: float = 0.0
    value: float = 0.0
    train: float = 0.0
    sync: float = 0.0
    switch: float = 0.0
    throughput: float = math.nan
    overlap: float = 0.55
    reference_side: str = "learner"

    @property
    def work_s(self) -> float:
        """Generation without waiting for the longest sample."""
        return self.rollout if math.isnan(self.throughput) else self.throughput

    def checked(self) -> Stages:
        """Itself. Errors: `RltraceError` for what makes no sense."""
        for one in fields(self):
            value = getattr(self, one.name)
            same = one.name == "throughput" and math.isnan(value)
            if not isinstance(value, str) and not (same or 0 <= value < math.inf):
                raise WrongUsage(f"{one.name} must not be negative or infinite, and is {value:g}")
            if not isinstance(value, str) and not same:
                check_limits("triage.seconds", value, one.name)
        if not 0 <= self.overlap <= 1:
            raise WrongUsage(f"overlap is a part of the update, 0 to 1, not {self.overlap:g}")
        if self.work_s > self.rollout:
            raise WrongUsage("throughput is generation without its tail: it cannot exceed rollout")
        if self.rollout + self.train <= 0:
            raise WrongUsage("give at least --rollout or --train, in seconds")
        return self


@dataclass(frozen=True)
class Step:
    """The step of a placement, seconds: both chains, what is exposed of moving weights, and all."""

    placement: str
    formula: str
    actors_s: float
    learner_s: float
    weights_s: float
    step_s: float


@dataclass(frozen=True)
class WallCost:
    """What the step would be shorter by without a wall, as a part of it."""

    wall: str
    share: float


@dataclass(frozen=True)
class Fix:
    """A move against a wall and what the replay predicts of it (None: nothing does)."""

    wall: str
    move: str
    lever: str
    found: Prediction | None


@dataclass(frozen=True)
class Triage:
    """`steps` by placement; `walls` of the one that was asked for, the dearest first; `binding` are
    the first and those that cost as much within 5 points (none: balanced)."""

    stages: Stages
    placement: str
    steps: tuple[Step, ...]
    walls: tuple[WallCost, ...]

    @property
    def binding(self) -> tuple[WallCost, ...]:
        """What binds."""
        first = self.walls[0] if self.walls else None
        if first is None or first.share < BINDS:
            return ()
        return tuple(w for w in self.walls if w.share >= max(BINDS, first.share - ALIKE))

    @property
    def gain(self) -> float:
        """The colocated step over the asynchronous one, on devices that are as many for each stage
        as before: at equal devices in all, none of it comes from turning a sum into a maximum."""
        by_name = {step.placement: step.step_s for step in self.steps}
        return by_name["colocated"] / by_name["async"]


def triage(stages: Stages, placement: str = "colocated") -> Triage:
    """The answer. Errors: `RltraceError` for seconds or a placement that make no sense."""
    stages.checked()
    if placement not in PLACEMENTS:
        raise WrongUsage(f"placement must be one of {', '.join(PLACEMENTS)}, not {placement!r}")
    steps = tuple(composed(stages, one) for one in PLACEMENTS)
    return Triage(stages, placement, steps, _walls(stages, placement))


def composed(stages: Stages, placement: str, without: Mapping[str, float] | None = None) -> Step:
    """The step of a placement, with some seconds less of some stages."""
    less = without or {}

    def of(name: str) -> float:
        return float(getattr(stages, name)) - less.get(name, 0.0)

    rollout = stages.work_s if placement == "async" else stages.rollout
    rollout = max(0.0, rollout - less.get("rollout", 0.0))
    actors = rollout + of("env") + of("reward")
    learner = of("logprob") + of("value") + of("train")
    if stages.reference_side == "actor":
        actors += of("reference")
    else:
        learner += of("reference")
    if placement == "colocated":
        weights = of("sync") + of("switch")
        return Step(placement, "sum", actors, learner, weights, actors + learner + weights)
    weights = of("sync") * (1 - stages.overlap)
    formula = "max(actors, learner) + exposed weights"
    return Step(placement, formula, actors, learner, weights, max(actors, learner) + weights)


def _walls(stages: Stages, placement: str) -> tuple[WallCost, ...]:
    whole = composed(stages, placement).step_s
    tail_s = 0.0 if placement == "async" else stages.rollout - stages.work_s
    parts: dict[str, dict[str, float]] = {}
    for stage, wall in RESOURCE_OF.items():
        name = word(stage)
        seconds = stages.work_s if stage is Stage.ROLLOUT else getattr(stages, name, 0.0)
        if seconds:
            parts.setdefault(wall, {})[name] = seconds
    if tail_s:
        parts[TAIL] = {"rollout": tail_s}
    found = [
        WallCost(wall, 1 - composed(stages, placement, less).step_s / whole)
        for wall, less in parts.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.share))


def first_fix(of: Triage) -> Fix | None:
    """The move against what binds with the largest predicted gain for its effort; None where
    nothing binds."""
    stages, placement = of.stages, of.placement
    walls = [wall.wall for wall in of.binding]
    if not walls:
        return None
    names = {one.name for one in fields(stages)}
    seconds = {
        word(stage): getattr(stages, word(stage))
        for stage in Stage
        if word(stage) in names and getattr(stages, word(stage)) > 0
    }
    tables: dict[str, object] = {
        "placement": placement,
        "stages": seconds,
        "sync": {"overlap": stages.overlap},
    }
    if not math.isnan(stages.throughput):
        tables["rollout"] = {"throughput_s": stages.throughput}
        if placement == "async":
            tables["stages"] = {**seconds, "rollout": stages.throughput}
    ask = predictor(stated(tables, "the stages").workload)
    best: tuple[float, Fix] | None = None
    open_moves = [m for m in moves() if m.wall in walls and (not m.stage or m.stage in seconds)]
    for move in open_moves:
        for value in move.values:
            try:
                found = ask([(move.lever, value)])
            except RltraceError:
                continue
            gain = (found.goodput_gain.middle - 1) / move.effort
            if found.verdict not in (SLOWER, NO_GAIN) and gain > (best[0] if best else 0.0):
                best = gain, Fix(move.wall, move.move, f"{move.lever}={value}", found)
    if best is not None:
        return best[1]
    other: Move | None = next((m for m in open_moves if not m.lever), None)
    return Fix(other.wall, other.move, "", None) if other else None
