"""The options of a framework that make a plan: the workload's shape in its words, and the settings
on file of the moves that the design is made of, with the plan's figures in them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rltrace.analysis.plan.catalogue import Framework, catalogue
from rltrace.analysis.plan.placements import PARTIAL, THREE_POOLS, TRAJECTORY
from rltrace.analysis.plan.plan import Plan, Row
from rltrace.analysis.playbook import Move, Setting, frameworks, moves, settings_for
from rltrace.analysis.walls.wall import ENV_REWARD, FRESHNESS, LEARNER, ROLLOUT, TAIL, WEIGHTS

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
    templates = _templates(framework)
    told: set[str] = set()

    def one(option: str, value: Any, why: str) -> Launch:
        told.add(option)
        template = templates.get(option)
        if template is not None:
            return Launch(option, filled(template, known), why)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return Launch(option, value, why, number or "://" in str(value))

    for option in framework.launch:
        yield one(option, None, "the workload's shape")
    config = _config(name, found)
    for wall, what, why in _wanted(found):
        move = _move(wall, what)
        for setting in settings_for(name, "", move) if move else ():
            relative = isinstance(setting.value, str) and _RELATIVE.fullmatch(setting.value)
            unknown = relative and setting.option not in templates
            if setting.config != config or unknown or _is_against(setting, name, found):
                continue
            if setting.option not in told:
                yield one(setting.option, setting.value, why)
                for option, value in {**setting.needs, **setting.exactly}.items():
                    if option not in told:
                        yield one(option, value, f"with {setting.option}")
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


def _templates(framework: Framework) -> dict[str, str]:
    """Options whose value the plan knows, of all entries with the framework's adapter."""
    found: dict[str, str] = {}
    for entry in catalogue():
        if entry.adapter == framework.adapter:
            found |= entry.figures
    return {**found, **framework.launch}


def _move(wall: str, what: str) -> Move | None:
    return next((m for m in moves() if (m.wall, m.move) == (wall, what)), None)


def _placement_settings(name: str, what: str) -> tuple[Setting, ...]:
    move = _move(ROLLOUT, what)
    return settings_for(name, "", move) if move else ()


def _config(name: str, found: Plan) -> str:
    """The configuration that runs the placement: the default one wherever it can."""
    made = _placement_settings(name, IN_TURN if found.parts.kind.shared else OVERLAP)
    configs = [setting.config for setting in made]
    return "" if "" in configs or not configs else configs[0]


def _is_against(setting: Setting, name: str, found: Plan) -> bool:
    """Whether it needs what makes the other kind of placement."""
    other = _placement_settings(name, OVERLAP if found.parts.kind.shared else IN_TURN)
    against = {(one.option, str(one.value)) for one in other}
    needs = {setting.option: setting.value, **setting.needs, **setting.exactly}
    return any((option, str(value)) in against for option, value in needs.items())


def _wanted(found: Plan) -> Iterator[tuple[str, str, str]]:
    """Walls and moves of the playbook that the plan's design is made of, and why."""
    best, parts = found.best.name, found.parts
    if parts.kind.shared:
        yield ROLLOUT, IN_TURN, f"the placement is {best}"
    elif parts.kind.least_lag:
        yield ROLLOUT, OVERLAP, f"the placement is {best}"
        yield ROLLOUT, "more rollout replicas", _split(found.best)
    if best in (PARTIAL, TRAJECTORY, THREE_POOLS):
        yield TAIL, "partial rollout", "what is not complete waits for the next batch"
    if found.best.mean_lag > 0:
        if not parts.kind.shared:
            yield FRESHNESS, "bound the lag", _bound(found)
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
    if parts.sync is not None:
        by = {"bucketed": "larger buckets", "relay": "another checkpoint engine",
              "direct": "another transport", "delta": "send what changed"}  # fmt: skip
        if parts.sync.mechanism in by:
            yield WEIGHTS, by[parts.sync.mechanism], f"weights travel {parts.sync.mechanism}"
    if found.spec.environment.reward_s:
        yield ENV_REWARD, "more reward workers", f"{found.spec.environment.judges} at once"


def _bound(found: Plan) -> str:
    asked, planned = found.spec.lag_bound, found.parts.lag_bound
    if planned < asked:
        return f"{asked:g} versions are allowed; {planned:g} keep the engines full"
    return f"{asked:g} versions are allowed"


def _split(row: Row) -> str:
    counts = ", ".join(f"{count} {pool}" for pool, count in row.devices.items())
    return f"devices: {counts}"
