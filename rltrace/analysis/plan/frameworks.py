"""Frameworks: which fits a plan, and the options that launch it there."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rltrace.analysis.plan.constants import packaged
from rltrace.analysis.plan.placements import (
    ASYNC,
    COLOCATED,
    DISAGGREGATED,
    ONE_STEP_OFF,
    PARTIAL,
    THREE_POOLS,
    TRAJECTORY,
)
from rltrace.analysis.plan.plan import Plan
from rltrace.analysis.plan.spec import Spec
from rltrace.analysis.playbook import Setting, frameworks, moves, settings_for
from rltrace.analysis.walls.wall import ENV_REWARD, FRESHNESS, LEARNER, ROLLOUT, TAIL, WEIGHTS

_MODES = {
    COLOCATED: ("sync",),
    PARTIAL: ("trajectory", "sync"),
    DISAGGREGATED: ("sync", "one-step-off"),
    ONE_STEP_OFF: ("one-step-off", "async"),
    ASYNC: ("async", "trajectory"),
    TRAJECTORY: ("trajectory", "async"),
    THREE_POOLS: ("trajectory", "async"),
}
"""What a framework has to run for a placement: the first best, the second will do."""
_AGENTIC = (("no agents", -3), ("it has agents", 0.5), ("it is made for agents", 1.5))
_MATURITY = (("immature", -3), ("young", -1), ("in use", 0.5), ("mature", 1.5))


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
    entries: list[dict[str, Any]] = [
        {key: tuple(value) if key in lists else value for key, value in entry.items()}
        for entry in packaged("frameworks")["framework"]
    ]
    return tuple(Framework(**entry) for entry in entries)


def choose(spec: Spec, placement: str, walls: tuple[str, ...]) -> Choice:
    """The framework that fits a workload in a placement against the walls that bind."""
    real = [one for one in catalogue() if not one.paper]
    ranked = sorted(real, key=lambda one: -sum(_points(one, spec, placement, walls).values()))
    reasons = _points(ranked[0], spec, placement, walls)
    return Choice(
        framework=ranked[0],
        reasons=(
            *(reason for reason, value in reasons.items() if value > 0),
            *(f"but: {reason}" for reason, value in reasons.items() if value < 0),
        ),
        others=tuple(one.name for one in ranked[1:3]),
        papers=tuple(
            f"{one.name} ({one.source}) is a paper: {one.instead}"
            for one in catalogue()
            if one.paper and set(one.bet[:1]) & set(walls)
        ),
        opinions=str(packaged("frameworks")["opinions"]),
    )


def _points(one: Framework, spec: Spec, placement: str, walls: tuple[str, ...]) -> dict[str, float]:
    """Reasons for (above 0) and against a framework."""
    best, will_do = (*_MODES[placement], "")[:2]
    found: dict[str, float] = {}

    def either(holds: bool, says: str, more: float, lacks: str, less: float) -> None:
        found[says if holds else lacks] = more if holds else less

    if best not in one.modes and will_do in one.modes:
        found[f"it comes near {placement} ({will_do})"] = 0.5
    else:
        either(best in one.modes, f"it runs {placement}", 2, f"it does not run {placement}", -4)
    size = spec.model.parameters / 1e9
    within = one.sizes[0] <= size <= one.sizes[1]
    either(within, f"{size:,.0f}B is in its range", 1, f"{size:,.0f}B is outside of its range", -3)
    if spec.model.is_mixture and not one.mixtures:
        found["mixtures of experts are not its ground"] = -3
    place, wall = next(((i, wall) for i, wall in enumerate(one.bet) if wall in walls), (0, ""))
    if wall:
        found[f"it is built against {wall}"] = 2 / (1 + place)
    simple = spec.model.parameters <= 10e9 and spec.gpus <= spec.gpu.node
    if simple and placement == COLOCATED and one.maturity == 3 and "hf" in one.stacks:
        found["one node and a small model: little to set up"] = 3
    if spec.stack:
        near = f"your stack ({spec.stack})"
        either(spec.stack in one.stacks, f"it is near {near}", 2.5, f"it is not near {near}", -1.5)
    if spec.agentic:
        says, points = _AGENTIC[one.agentic]
        found[says] = points
        if one.pools == 2:
            found["environments have a pool of their own"] = 1
    if spec.multimodal:
        either(one.multimodal, "it is multimodal", 3, "it is not multimodal", -2)
    if spec.own_agent:
        rewritten = "the agent is rewritten for it"
        either(one.own_agent, "it takes an agent as it is", 4, rewritten, -1)
    if one.custom:
        found["everything is yours to write"] = -4
    says, points = _MATURITY[one.maturity]
    found[f"it is {says}, by opinion"] = points
    return found


# --- launching a plan: the workload's shape in a framework's words, and the settings on file of the
# moves that the design is made of, with the plan's figures in them

OVERLAP, IN_TURN = "overlap generation with training", "use all devices in turn"
_RELATIVE = re.compile(r"x[0-9.]+")
"""A value that says by how much more of what a run has: before there is a run it says nothing."""


@dataclass(frozen=True)
class Launch:
    """An option of the framework: its value, and why. `example`: the value is that of the settings
    on file, which the plan cannot tell."""

    option: str
    value: Any
    why: str
    example: bool = False


def launch(found: Plan, framework: Framework) -> Iterator[Launch]:
    """Options that make the plan in a framework; none where it has no settings on file."""
    names = (framework.adapter, framework.name.lower())
    name = next((one for one in names if one in frameworks()), "")
    if not name:
        return
    known = figures(found)
    # Options whose value the plan knows, of all entries with the framework's adapter.
    templates: dict[str, str] = {}
    for entry in catalogue():
        if entry.adapter == framework.adapter:
            templates |= entry.figures
    templates |= framework.launch
    told: set[str] = set()

    def told_of(option: str, value: Any, why: str) -> Launch:
        told.add(option)
        if option in templates:
            return Launch(option, filled(templates[option], known), why)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return Launch(option, value, why, number or "://" in str(value))

    for option in framework.launch:
        yield told_of(option, None, "the workload's shape")
    own, other = (IN_TURN, OVERLAP) if found.parts.kind.shared else (OVERLAP, IN_TURN)
    # The configuration that runs the placement: the default one, which comes first, where it can.
    config = next((setting.config for setting in _settings(name, ROLLOUT, own)), "")
    against = {(one.option, str(one.value)) for one in _settings(name, ROLLOUT, other)}
    for wall, what, why in _wanted(found):
        for setting in _settings(name, wall, what):
            beside = {**setting.needs, **setting.exactly}
            asks = {setting.option: setting.value, **beside}
            contrary = any((key, str(value)) in against for key, value in asks.items())
            relative = isinstance(setting.value, str) and _RELATIVE.fullmatch(setting.value)
            unknown = relative and setting.option not in templates
            if setting.config != config or unknown or contrary:
                continue
            if setting.option not in told:
                yield told_of(setting.option, setting.value, why)
                for option, value in beside.items():
                    if option not in told:
                        yield told_of(option, value, f"with {setting.option}")
            break


def figures(found: Plan) -> dict[str, int]:
    """The figures of a plan by the names that the catalogue's templates have for them."""
    spec, engine = found.spec, found.parts.rollout.engine
    generating = found.best.devices.get("rollout", spec.gpus)
    training = found.best.devices.get("train", spec.gpus)
    node = spec.gpu.node
    return {
        "prompts": spec.prompts,
        "group": spec.group,
        "samples": spec.samples,
        "prompt_tokens": math.ceil(spec.prompt_tokens),
        "response_tokens": math.ceil(spec.cap_tokens),
        "sequence_tokens": math.ceil(spec.prompt_tokens + spec.cap_tokens),
        "sequence_ways": found.parts.memory.ways,
        "engine_gpus": engine.ways,
        "engines": generating // engine.ways,
        "slots": int(engine.slots),
        "rollout_gpus": generating,
        "rollout_nodes": math.ceil(generating / node),
        "rollout_gpus_per_node": min(node, generating),
        "train_gpus": training,
        "nodes": math.ceil(training / node),
        "gpus": spec.gpus,
        "all_nodes": math.ceil(spec.gpus / node),
        "gpus_per_node": min(node, spec.gpus),
        "lag_bound": math.ceil(found.parts.lag_bound),
        "judges": min(spec.environment.judges, spec.samples),
    }


def filled(template: str, known: Mapping[str, int]) -> int | str:
    """`{engines}` -> 8, `sglang:d{engines}` -> "sglang:d8"."""
    text = template.format_map(known)
    return int(text) if re.fullmatch(r"\{\w+\}", template) else text


def _settings(name: str, wall: str, what: str) -> tuple[Setting, ...]:
    """The settings of a framework that make a move of the playbook."""
    made = (settings_for(name, "", m) for m in moves() if (m.wall, m.move) == (wall, what))
    return next(made, ())


def _wanted(found: Plan) -> Iterator[tuple[str, str, str]]:
    """Walls and moves of the playbook that the plan's design is made of, and why."""
    best, parts = found.best.name, found.parts
    if parts.kind.shared:
        yield ROLLOUT, IN_TURN, f"the placement is {best}"
    elif parts.kind.least_lag:
        yield ROLLOUT, OVERLAP, f"the placement is {best}"
        counts = ", ".join(f"{count} {pool}" for pool, count in found.best.devices.items())
        yield ROLLOUT, "more rollout replicas", f"devices: {counts}"
    if best in (PARTIAL, TRAJECTORY, THREE_POOLS):
        yield TAIL, "partial rollout", "what is not complete waits for the next batch"
    if found.best.mean_lag > 0:
        if not parts.kind.shared:
            bound = f"{found.spec.lag_bound:g} versions are allowed"
            if parts.lag_bound < found.spec.lag_bound:
                bound += f"; {parts.lag_bound:g} keep the engines full"
            yield FRESHNESS, "bound the lag", bound
        yield FRESHNESS, "correct for the lag", "samples are off policy"
    engine = parts.rollout.engine
    yield ROLLOUT, "more requests at once", f"{engine.slots:,.0f} sequences fit an engine"
    yield ROLLOUT, "share prefixes", f"{found.spec.group} samples share a prompt"
    yield LEARNER, "dynamic batch", "lengths differ"
    if parts.memory.recompute:
        yield LEARNER, "recompute activations", "activations do not fit otherwise"
    if parts.memory.offloads:
        yield LEARNER, "offload", "the optimizer does not fit otherwise"
    if parts.memory.ways > 1:
        yield LEARNER, "split long sequences", f"over {parts.memory.ways} GPUs"
    by = {"bucketed": "larger buckets", "relay": "another checkpoint engine",
          "direct": "another transport", "delta": "send what changed"}  # fmt: skip
    if parts.moved.mechanism in by:
        yield WEIGHTS, by[parts.moved.mechanism], f"weights travel {parts.moved.mechanism}"
    if found.spec.environment.reward_s:
        yield ENV_REWARD, "more reward workers", f"{found.spec.environment.judges} at once"
