"""What binds and what to do first, from rough seconds: `rltrace whatif` in short."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rltrace.analysis.fixes.playbook import moves
from rltrace.analysis.plan.placement_breakdown import CostedWall, binding, costed
from rltrace.analysis.stats.confidence_interval import Estimate
from rltrace.analysis.whatif.levers import LEVERS
from rltrace.analysis.whatif.predict import NO_GAIN, SLOWER, Prediction, Source, predictor
from rltrace.analysis.whatif.replay import replay
from rltrace.analysis.whatif.stated_workload import Stated, stated
from rltrace.analysis.whatif.workload import PLACEMENTS, Constants
from rltrace.trace.errors import RltraceError


@dataclass(frozen=True)
class TriageStep:
    """A placement: the step if each stage keeps its devices and its seconds, and the gain in
    goodput at equal devices (None: it is the job's own, or nothing predicts it)."""

    placement: str
    step_s: float
    goodput_gain: Estimate | None


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
    first_fix: First | None

    @property
    def binding(self) -> tuple[str, ...]:
        return binding(self.walls)


def triage(tables: Mapping[str, Any]) -> Triage:
    """Of a stages file (docs/reference/levers.md). Errors: `RltraceError`."""
    found, steps = stated(tables, "the stages"), []
    load, ask = found.workload(Constants()), predictor(found.workload)
    for name in PLACEMENTS:
        own = name == load.placement
        beside = load if own else LEVERS["placement"].moved(load, name, Constants())
        gain = None
        with suppress(RltraceError):  # it is the job's own, or one device that cannot be split
            gain = ask([("placement", name)]).goodput_gain
        steps.append(TriageStep(name, replay(beside).step_s, gain))
    walls = costed(load)
    first = first_of(binding(walls), found.tables["stages"], found.workload)
    return Triage(found, tuple(steps), walls, first)


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
