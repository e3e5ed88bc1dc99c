"""Which framework fits a plan, its launch options, first fix and risks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rltrace.analysis.fixes.job_settings import forms
from rltrace.analysis.fixes.playbook import PREDICTED, FrameworkSetting, moves, settings_for
from rltrace.analysis.plan.placements import least_lag
from rltrace.analysis.plan.plan import Plan
from rltrace.analysis.plan.stage_costs import LIMIT
from rltrace.analysis.plan.triage import First, first_of
from rltrace.analysis.trajectories.freshness import prior_for
from rltrace.analysis.walls.wall import FRESHNESS, LEARNER, ROLLOUT, WEIGHTS
from rltrace.analysis.whatif.workload import packaged

OVERLAP, IN_TURN = "overlap generation with training", "use all devices in turn"
_NEWEST = "9999"
"""A version: a job that is planned is of the newest."""


@dataclass(frozen=True)
class Framework:
    """An entry of the catalogue, whose keys are explained there."""

    name: str
    says: str
    against: str
    modes: list[str]
    sizes: list[float]
    stacks: list[str]
    adapter: str
    source: str
    agents: bool = True
    mixtures: bool = True
    launch: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, str] = field(default_factory=dict)
    launches_as: str = ""


@dataclass(frozen=True)
class Choice:
    framework: Framework
    reasons: tuple[str, ...]


@cache
def catalogue() -> tuple[Framework, ...]:
    entries = packaged("frameworks")["framework"]
    options = {e["name"]: {key: e.get(key, {}) for key in ("launch", "figures")} for e in entries}
    return tuple(Framework(**e, **options.get(e.get("launches_as"), {})) for e in entries)


def choose(found: Plan) -> Choice:
    """Of those that lack the least of what a plan needs one that is built against what binds."""

    def lacks(one: Framework) -> tuple[int, bool]:
        return [*_needed(one, found).values()].count(False), one.against not in found.binding

    best = min(catalogue(), key=lacks)
    reasons = [says if has else f"but not: {says}" for says, has in _needed(best, found).items()]
    if best.against in found.binding:
        reasons.append(f"it is built against {best.against}")
    return Choice(best, tuple(reasons))


def _needed(one: Framework, found: Plan) -> dict[str, bool]:
    """What a plan needs, and whether a framework has it."""
    spec, placement = found.spec, found.best.name
    modes = {placement, "async"} if least_lag(placement) else {"sync"}
    size = spec.model.parameters / 1e9
    needed = {
        f"it runs {placement}": bool(modes & set(one.modes)),
        f"{size:,.0f}B is in its range": one.sizes[0] <= size <= one.sizes[1],
    }
    if spec.model.is_mixture:
        needed["it trains mixtures of experts"] = one.mixtures
    if spec.agentic:
        needed["it has agents"] = one.agents
    if spec.stack:
        needed[f"it is near your stack ({spec.stack})"] = spec.stack in one.stacks
    return needed


# --- launching a plan: the workload's shape in a framework's words, and the settings on file of the
# moves that the design is made of, with the plan's figures in them


@dataclass(frozen=True)
class LaunchOption:
    """`example`: the value is that of the settings on file, which the plan cannot tell."""

    option: str
    value: Any
    reason: str
    example: bool = False


def launch(found: Plan, framework: Framework) -> tuple[LaunchOption, ...]:
    known = figures(found)
    templates = {**framework.figures, **framework.launch}
    launched: dict[str, LaunchOption] = {}

    def tell(option: str, value: Any, why: str) -> None:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        example = option not in templates and (number or "://" in str(value))
        if option in templates:
            text = templates[option].format_map(known)
            value = int(text) if text.isdigit() else text
        launched.setdefault(option, LaunchOption(option, value, why, example))

    for option in framework.launch:
        tell(option, None, "the workload's shape")
    own, other = (IN_TURN, OVERLAP) if found.parts.shared else (OVERLAP, IN_TURN)
    # The configuration that runs the placement: the default one where it can.
    default = next(iter(forms()[framework.adapter].programs), "")
    able = [one.config for one in _settings(framework, ROLLOUT, own)]
    config = default if not able or any(default in one or not one for one in able) else able[0][0]
    against = {(one.option, str(one.value)) for one in _settings(framework, ROLLOUT, other)}
    for wall, what, why in _wanted(found):
        for setting in _settings(framework, wall, what):
            asks = {setting.option: setting.value, **setting.needs, **setting.exactly}
            contrary = any((key, str(value)) in against for key, value in asks.items())
            # Before there is a run, what follows from it says nothing.
            told = all(option in templates or v != PREDICTED for option, v in asks.items())
            if setting.is_in(config) and not contrary and told:
                for option, value in asks.items():
                    tell(option, value, why)
                break
    return tuple(launched.values())


def figures(found: Plan) -> dict[str, int]:
    """The figures of a plan by the names that the catalogue's templates have for them."""
    spec, engine, node = found.spec, found.parts.rollout.engine, found.spec.gpu.node
    generating = found.best.devices.get("rollout", spec.gpus)
    training = found.best.devices.get("train", spec.gpus)
    return {
        "prompts": spec.prompts, "group": spec.group, "samples": spec.samples,
        "prompt_tokens": math.ceil(spec.prompt_tokens),
        "response_tokens": math.ceil(spec.cap_tokens),
        "sequence_tokens": math.ceil(spec.prompt_tokens + spec.cap_tokens),
        "sequence_ways": found.parts.memory.ways,
        "engine_gpus": engine.ways, "engines": generating // engine.ways,
        "rollout_gpus": generating, "rollout_nodes": math.ceil(generating / node),
        "rollout_gpus_per_node": min(node, generating),
        "train_gpus": training, "nodes": math.ceil(training / node),
        "gpus": spec.gpus, "all_nodes": math.ceil(spec.gpus / node),
        "gpus_per_node": min(node, spec.gpus),
        "lag_bound": math.ceil(found.parts.lag_bound),
    }  # fmt: skip


def _settings(framework: Framework, wall: str, what: str) -> tuple[FrameworkSetting, ...]:
    move = next(one for one in moves() if one.wall == wall and one.move == what)
    return settings_for(framework.adapter, _NEWEST, move)


def _wanted(found: Plan) -> Iterator[tuple[str, str, str]]:
    """Walls and moves of the playbook that the plan's design is made of, and why."""
    parts, memory = found.parts, found.parts.memory
    placed = f"the placement is {parts.placement}"
    if parts.shared:
        yield ROLLOUT, IN_TURN, placed
    elif least_lag(parts.placement):
        yield ROLLOUT, OVERLAP, placed
        counts = ", ".join(f"{count} {pool}" for pool, count in parts.devices.items())
        yield ROLLOUT, "more rollout replicas", f"devices: {counts}"
        yield FRESHNESS, "bound the lag", f"it is planned with {parts.lag_bound:g} versions"
        yield FRESHNESS, "correct for the lag", "samples are off policy"
    if memory.recompute:
        yield LEARNER, "recompute activations", "activations do not fit otherwise"
    if "offload" in memory.stage:
        yield LEARNER, "offload", "the optimizer does not fit otherwise"
    if memory.ways > 1:
        yield LEARNER, "split long sequences", f"over {memory.ways} GPUs"
    mechanism = parts.moved.mechanism
    if move := packaged("mechanisms").get(mechanism, {}).get("move"):
        yield WEIGHTS, move, f"weights travel {mechanism}"


@dataclass(frozen=True)
class Advice:
    """What follows from a plan; `launch` are settings of the framework."""

    choice: Choice
    first: First | None
    risks: tuple[str, ...]
    launch: tuple[LaunchOption, ...]


def advise(found: Plan) -> Advice:
    choice = choose(found)
    stages = [cost.stage for cost in found.stages]
    settled = {"placement", "no_barrier"}  # it is chosen already
    if found.parts.rollout.engine.because != LIMIT:
        settled.add("slots")  # more need room in the engines' memory
    return Advice(
        choice=choice,
        first=first_of(found.binding, stages, lambda _: found.placed.load, settled),
        risks=tuple(_risks(found)),
        launch=launch(found, choice.framework),
    )


def _risks(found: Plan) -> Iterator[str]:
    best, of, prior = found.best, found.parts.rollout.lengths, prior_for("")
    if best.mean_lag > 0:
        yield (
            f"samples lag by {best.mean_lag:.1f} versions, {max(best.lag_shares)} at most: "
            f"plain PPO is used at {prior.held} and in doubt from {prior.doubtful} on; compare the "
            "reward at equal GPU-hours"
        )
    if of.cut_share > 0.05:
        cut = f"{100 * of.cut_share:.0f} % of the responses are cut at {of.cap:,.0f} tokens"
        yield f"{cut}, so the policy learns to be short"
    if found.step_s.high > 1.5 * found.step_s.value:
        yield "the range is wide: trace a short run of this job, then plan with --from-run"
