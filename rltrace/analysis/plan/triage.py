"""What binds and what to do first, from rough seconds of stages.

Stages that take turns add up; where actors and learner run beside each other the longer chain
counts, and the part of weight sync that is not hidden. A wall costs what the step would be shorter
without it: w of a chain A beside a chain L costs max(A, L) - max(A - w, L).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rltrace.analysis.fixes.playbook import moves
from rltrace.analysis.plan.placement_breakdown import CostedWall, binding
from rltrace.analysis.walls.wall import TAIL, wall_of
from rltrace.analysis.whatif.predict import NO_GAIN, SLOWER, Prediction, Source, predictor
from rltrace.analysis.whatif.stated_workload import Stated, stated
from rltrace.trace.errors import RltraceError
from rltrace.trace.vocabulary import word

PLACEMENTS = ("colocated", "one-step-off", "async")
_ACTORS = ("rollout", "env", "reward")
_LEARNER = ("reference", "logprob", "value", "train")


@dataclass(frozen=True)
class TriageStep:
    """The step of a placement, seconds: both chains, what is exposed of moving weights, and all."""

    placement: str
    actors_s: float
    learner_s: float
    sync_s: float
    step_s: float


@dataclass(frozen=True)
class First:
    """A move of the playbook against a wall, and what the replay predicts of it (None: nothing)."""

    wall: str
    move: str
    lever: str
    prediction: Prediction | None
    risk: str = field(metadata={"json": False})


@dataclass(frozen=True)
class Triage:
    """`steps` by placement; `walls` of the one that was asked for, the dearest first."""

    stated: Stated
    steps: tuple[TriageStep, ...]
    walls: tuple[CostedWall, ...]

    @property
    def binding(self) -> tuple[str, ...]:
        return binding(self.walls)


def triage(tables: Mapping[str, Any]) -> Triage:
    """Of a stages file (docs/whatif.md). Errors: `RltraceError` for what makes no sense."""
    found = stated(tables, "the stages")
    return Triage(found, tuple(composed(found, one) for one in PLACEMENTS), _walls(found))


def composed(
    found: Stated, placement: str, without: Mapping[str, float] | None = None
) -> TriageStep:
    """The step of a placement, with some seconds less of some stages."""
    less = without or {}

    def of(*names: str) -> float:
        return sum(found.number("stages", name, 0.0) - less.get(name, 0.0) for name in names)

    actors, learner = of(*_ACTORS), of(*_LEARNER)
    if placement == "async":
        actors = max(actors - _tail_s(found), of("env", "reward"))
    turns = placement == "colocated"
    hidden = found.number("sync", "overlap", 0.0)
    weights = of("sync", "switch") if turns else of("sync") * (1 - hidden)
    chains = actors + learner if turns else max(actors, learner)
    return TriageStep(placement, actors, learner, weights, chains + weights)


def _tail_s(found: Stated) -> float:
    """How much longer generation takes with a barrier than its work."""
    rollout_s = found.number("stages", "rollout", 0.0)
    return rollout_s - found.number("rollout", "throughput_s", rollout_s)


def _walls(found: Stated) -> tuple[CostedWall, ...]:
    whole_s, tail_s = composed(found, found.placement).step_s, _tail_s(found)
    parts: dict[str, dict[str, float]] = {}
    for stage, wall in wall_of().items():
        name = word(stage)
        seconds = found.number("stages", name, 0.0) - (tail_s if name == "rollout" else 0.0)
        if seconds:
            parts.setdefault(wall, {})[name] = seconds
    if tail_s and found.placement != "async":
        parts[TAIL] = {"rollout": tail_s}
    walls = []
    for wall, less in parts.items():
        share = 1 - composed(found, found.placement, less).step_s / whole_s
        walls.append(CostedWall(wall, share, f"{sum(less.values()):,.1f} s"))
    return tuple(sorted(walls, key=lambda one: -one.share))


def first_fix(of: Triage) -> First | None:
    return first_of(of.binding, of.stated.tables["stages"], of.stated.workload)


def first_of(
    binding: Collection[str], stages: Iterable[str], source: Source, settled: Collection[str] = ()
) -> First | None:
    """Of the moves against walls that bind, in these stages, with levers that are not settled, that
    of the largest predicted gain for its effort; else the first that nothing predicts."""
    stages = {"", *stages}
    against = [move for move in moves() if move.wall in binding and move.stage in stages]
    possible = [move for move in against if move.lever not in settled]
    ask, most = predictor(source), 0.0
    best: First | None = None
    for move in (one for one in possible if one.lever):
        try:
            found = ask([(move.lever, move.value)])
        except RltraceError:
            continue
        gain = (found.goodput_gain.value - 1) / move.effort
        if found.outcome not in (SLOWER, NO_GAIN) and gain > most:
            lever = f"{move.lever}={move.value}"
            most, best = gain, First(move.wall, move.move, lever, found, move.risk)
    unknown = (First(m.wall, m.move, "", None, m.risk) for m in possible if not m.lever)
    return best or next(unknown, None)
