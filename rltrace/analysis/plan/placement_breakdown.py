"""What a placement takes: stages with their arithmetic, memory, and walls."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rltrace.analysis.plan.placements import PlacementCosts
from rltrace.analysis.plan.planned_workload import Spec
from rltrace.analysis.timeline.intervals import Floats
from rltrace.analysis.walls import wall as w
from rltrace.analysis.walls.attribute import without
from rltrace.analysis.walls.rank import BINDS
from rltrace.analysis.whatif.replay import replay
from rltrace.analysis.whatif.workload import PlanConstants, StepWorkload
from rltrace.trace.vocabulary import STAGE_SYMBOLS, Stage, word


@dataclass(frozen=True)
class StageCost:
    """A stage: seconds a step, the devices that do it, and lines of arithmetic."""

    stage: str
    symbol: str
    tau_s: float
    devices: float
    lines: tuple[str, ...]


def stage_costs(
    spec: Spec, parts: PlacementCosts, constants: PlanConstants
) -> tuple[StageCost, ...]:
    env, made = spec.environment, parts.rollout
    found = [_cost(Stage.ROLLOUT, parts.decoding_s, made.devices, *_rollout(spec, parts))]
    if spec.agentic:
        says = f"{env.calls:g} calls × {env.latency_s:g} s = {env.mean_s:,.1f} s a trajectory"
        longest = f"longest of {spec.samples:,} about {env.longest_s(spec.samples):,.0f} s"
        found.append(_cost(Stage.ENV, env.mean_s, 0, says, longest))
    if env.reward_s:
        at_once = min(env.judges, spec.samples)
        says = f"{spec.samples:,} rewards × {env.reward_s:g} s / {at_once} at once"
        found.append(_cost(Stage.REWARD, made.reward_s, 0, says))
    for stage, seconds in parts.learner.serial_s.items():
        lines = [f"forward: at {constants['forward_share']:g} of training's MFU"]
        if stage is Stage.TRAIN:
            lines = [*_training(spec, parts)]
        found.append(_cost(stage, seconds, parts.learner.devices, *lines))
    stage = Stage.SWITCH if parts.shared else Stage.SYNC
    rest = f"{parts.rest_s:g} s: data, packing, advantages, orchestration"
    found.append(_cost(stage, parts.moved.seconds, spec.gpus, parts.moved.says))
    found.append(_cost(Stage.OTHER, parts.rest_s, spec.gpus, rest))
    return tuple(found)


def _rollout(spec: Spec, parts: PlacementCosts) -> tuple[str, ...]:
    made, engine, of = parts.rollout, parts.rollout.engine, parts.rollout.lengths
    tokens = spec.response_tokens / made.engines
    return (
        f"{spec.samples:,} responses of {of.mean:,.0f} tokens on {made.engines:g} engines of "
        f"{engine.ways} GPU{'s' * (engine.ways > 1)}: {made.running:,.0f} sequences at once in each"
        f" ({made.waves:.2g} waves), {engine.tokens_per_s(made.running):,.0f} tokens/s an engine",
        f"longest chain {made.chain_tokens:,.0f} tokens × {1e3 * engine.token_s:.3g} ms + "
        f"{tokens:,.0f} tokens × {1e6 * engine.shared_token_s:.3g} µs = {made.decode_s:,.0f} s with"
        f" a barrier; {made.throughput_s:,.0f} s without",
        f"{100 * of.cut_share:.2g} % of the responses reach the cap; longest of {spec.samples:,}: "
        f"{of.longest(spec.samples):,.0f} tokens, {of.longest(spec.samples) / of.mean:.1f} times "
        "the mean",
    )


def _training(spec: Spec, parts: PlacementCosts) -> tuple[str, ...]:
    work, at_peak_s = parts.learner, parts.learner.flop / (parts.learner.devices * spec.gpu.peak)
    shared = f", × {work.slower:.2f} beside an engine" if work.slower > 1 else ""
    return (
        f"{spec.trained_tokens:,.0f} tokens × 6 × {spec.model.active / 1e9:.4g}B + attention = "
        f"{work.flop:.3g} FLOP; {work.devices:g} × {spec.gpu.tflops:g} TFLOP/s: "
        f"{at_peak_s:,.1f} s at 100 %, so {100 * work.mfu:.0f} % MFU",
        f"arithmetic {work.arithmetic_s:,.1f} s, collectives {work.collectives_s:,.1f} s, pipeline "
        f"bubble {work.bubble_s:,.1f} s{shared}{', twice with a critic' * spec.critic}; "
        f"{work.sharding}",
    )


def _cost(stage: Stage, seconds: float, devices: float, *lines: str) -> StageCost:
    return StageCost(word(stage), STAGE_SYMBOLS.get(stage, ""), seconds, devices, lines)


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of a GPU by what they are for, and of how much they may be."""

    where: str
    used_bytes: dict[str, float]
    usable_bytes: float
    note: str


def memory_use(
    spec: Spec, parts: PlacementCosts, constants: PlanConstants
) -> tuple[MemoryUse, ...]:
    held, engine = parts.memory, parts.rollout.engine
    notes = ["16 bytes a parameter"]
    if held.ways > 1:
        notes.append(f"the longest sequence is split over {held.ways} GPUs")
    if held.recompute:
        notes.append("activations are computed again")
    each = parts.rollout.running * engine.sequence_bytes / engine.ways
    return (
        MemoryUse(
            f"training, {held.devices} GPUs, ZeRO-{held.stage}",
            {"state": held.state_bytes, "activations": held.activation_bytes},
            held.usable_bytes,
            "; ".join(notes),
        ),
        MemoryUse(
            f"engines, {parts.rollout.engines:g} of {engine.ways} GPU{'s' * (engine.ways > 1)}",
            {"weights": spec.model.weight_bytes / engine.ways, "caches in use": each},
            spec.gpu.memory_bytes * constants["engine_memory_share"],
            f"{engine.slots:,.0f} sequences fit an engine ({engine.because}); a sequence takes "
            f"{engine.sequence_bytes / 1e9:,.3g} GB of cache on average",
        ),
    )


# --- walls: what the step would be shorter by if what one takes took none, and all else stayed


@dataclass(frozen=True)
class CostedWall:
    """A wall, and its cost as a share of the step (NaN: only a run tells)."""

    name: str
    share: float


def binding(walls: tuple[CostedWall, ...]) -> tuple[str, ...]:
    """The dearest and those that cost as much within 5 points; none where nothing costs 10 %."""
    least = max(BINDS, max((wall.share for wall in walls), default=0.0) - w.ALIKE)
    return tuple(wall.name for wall in walls if wall.share >= least)


def costed(load: StepWorkload) -> tuple[CostedWall, ...]:
    """The walls of a workload, the dearest first, those that it cannot tell last. Each is replayed
    without what the wall takes: of the long tail, without the lengths beyond the mean of a batch.
    Where nobody tells the tail, it counts as decoding."""
    step_s = replay(load).step_s

    def share(less: StepWorkload) -> float:
        return max(0.0, round(1 - replay(less).step_s / step_s, 9))

    def tokens(change: Callable[[Floats], Floats]) -> StepWorkload:
        return load.with_batches(lambda batch: replace(batch, tokens=change(batch.tokens)))

    names = (w.ROLLOUT, w.ENV_REWARD, w.LEARNER, w.WEIGHTS)
    shares = {name: share(without(load, w.stages_of(name))) for name in names}
    if load.tail_told:  # where no batch waits for its longest there is none
        shares[w.TAIL] = 0.0 if load.streams else share(tokens(lambda own: 0 * own + own.mean()))
        if not load.streams:  # without the work, a batch still waits for what is beyond the mean
            left = tokens(lambda own: np.maximum(0.0, own - own.mean()))
            shares[w.ROLLOUT] = share(replace(left, engine=replace(left.engine, shared_token_s=0)))
    found = (*sorted(shares, key=lambda name: -shares[name]), *w.wall_names())
    return tuple(CostedWall(name, shares.get(name, math.nan)) for name in dict.fromkeys(found))
