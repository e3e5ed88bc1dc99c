"""The frameworks there are, as data: what each bets on; and which fits a plan, the plan's last
line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rltrace.analysis.plan import placements
from rltrace.analysis.plan.constants import packaged
from rltrace.analysis.plan.spec import Spec

_MODES = {
    placements.COLOCATED: ("sync",),
    placements.PARTIAL: ("trajectory", "sync"),
    placements.DISAGGREGATED: ("sync", "one-step-off"),
    placements.ONE_STEP_OFF: ("one-step-off", "async"),
    placements.ASYNC: ("async", "trajectory"),
    placements.TRAJECTORY: ("trajectory", "async"),
    placements.THREE_POOLS: ("trajectory", "async"),
}
"""What a framework has to run for a placement: the first best, the second will do."""


@dataclass(frozen=True)
class Framework:
    """An entry of the catalogue (its keys are explained there). `maturity` and `effort` are
    opinions of the catalogue's date."""

    name: str
    bet: tuple[str, ...]
    says: str
    training: tuple[str, ...]
    rollout: tuple[str, ...]
    modes: tuple[str, ...]
    sizes: tuple[float, float]
    stacks: tuple[str, ...]
    agentic: int
    pools: int
    best_fit: str
    adapter: str
    watch: str
    maturity: int
    effort: str
    source: str
    also: str = ""
    mixtures: bool = True
    multimodal: bool = False
    own_agent: bool = False
    custom: bool = False
    paper: bool = False
    instead: str = ""
    launch: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """A framework for a plan, with reasons; `others` come near it, `papers` are systems without
    code whose bet is the wall: what to use instead."""

    framework: Framework
    reasons: tuple[str, ...]
    others: tuple[str, ...]
    papers: tuple[str, ...]
    opinions: str


@cache
def catalogue() -> tuple[Framework, ...]:
    """All entries, in the order of the file."""
    lists = {"bet", "training", "rollout", "modes", "sizes", "stacks"}
    found = []
    for entry in packaged("frameworks")["framework"]:
        values: dict[str, Any] = {k: tuple(v) if k in lists else v for k, v in entry.items()}
        found.append(Framework(**values))
    return tuple(found)


def choose(spec: Spec, placement: str, walls: tuple[str, ...]) -> Choice:
    """The framework that fits a workload in a placement against the walls that bind."""
    real = [one for one in catalogue() if not one.paper]
    ranked = sorted(real, key=lambda one: -sum(_points(one, spec, placement, walls).values()))
    first = ranked[0]
    points = _points(first, spec, placement, walls)
    papers = tuple(
        f"{one.name} ({one.source}) is a paper: {one.instead}"
        for one in catalogue()
        if one.paper and one.bet and one.bet[0] in walls
    )
    reasons = [reason for reason, value in points.items() if value > 0]
    lacks = [reason for reason, value in points.items() if value < 0]
    opinions = str(packaged("frameworks")["opinions"])
    near = tuple(one.name for one in ranked[1:3])
    return Choice(first, (*reasons, *(f"but: {one}" for one in lacks)), near, papers, opinions)


def _points(one: Framework, spec: Spec, placement: str, walls: tuple[str, ...]) -> dict[str, float]:
    """Reasons for (above 0) and against a framework."""
    best, will_do = (*_MODES[placement], "")[:2]
    found: dict[str, float] = {}
    if best in one.modes:
        found[f"it runs {placement}"] = 2
    elif will_do in one.modes:
        found[f"it comes near {placement} ({will_do})"] = 0.5
    else:
        found[f"it does not run {placement}"] = -4
    size = spec.model.parameters / 1e9
    low, high = one.sizes
    if low <= size <= high:
        found[f"{size:,.0f}B is in its range"] = 1
    else:
        found[f"{size:,.0f}B is outside of its range"] = -3
    if spec.model.is_mixture and not one.mixtures:
        found["mixtures of experts are not its ground"] = -3
    for place, wall in enumerate(one.bet):
        if wall in walls:
            found[f"it is built against {wall}"] = 2 / (1 + place)
            break
    simple = spec.model.parameters <= 10e9 and spec.gpus <= spec.gpu.node
    if simple and placement == placements.COLOCATED and one.maturity == 3 and "hf" in one.stacks:
        found["one node and a small model: little to set up"] = 3
    if spec.stack:
        near = spec.stack in one.stacks
        found[f"it is {'near' if near else 'not near'} your stack ({spec.stack})"] = (
            2.5 if near else -1.5
        )
    if spec.agentic:
        found[("", "it has agents", "it is made for agents")[one.agentic] or "no agents"] = (
            -3, 0.5, 1.5
        )[one.agentic]  # fmt: skip
        if one.pools == 2:
            found["environments have a pool of their own"] = 1
    if spec.multimodal:
        found["it is multimodal" if one.multimodal else "it is not multimodal"] = (
            3 if one.multimodal else -2
        )
    if spec.own_agent:
        found[
            "it takes an agent as it is" if one.own_agent else "the agent is rewritten for it"
        ] = 4 if one.own_agent else -1
    if one.custom:
        found["everything is yours to write"] = -4
    opinion = ("immature", "young", "in use", "mature")[one.maturity]
    found[f"it is {opinion}, by opinion"] = (-3, -1, 0.5, 1.5)[one.maturity]
    return found
