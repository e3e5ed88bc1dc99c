"""What a placement takes: stages with their arithmetic, memory, and walls."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from rltrace.analysis.binding import ALIKE
from rltrace.analysis.plan.constants import PlanConstants
from rltrace.analysis.plan.generation import longest_env_s
from rltrace.analysis.plan.learner import zero_bytes
from rltrace.analysis.plan.placements import Parts
from rltrace.analysis.plan.spec import Spec
from rltrace.analysis.walls.rank import BINDS
from rltrace.analysis.walls.wall import (
    ENV_REWARD,
    FRESHNESS,
    LEARNER,
    OBSERVABILITY,
    ROLLOUT,
    SPARSE_REWARD,
    TAIL,
    WEIGHTS,
)
from rltrace.trace.vocabulary import STAGE_SYMBOLS, Stage, word


@dataclass(frozen=True)
class StageCost:
    """A stage: seconds a step, the devices that do it, and lines of arithmetic."""

    stage: str
    symbol: str
    seconds: float
    devices: float
    lines: tuple[str, ...]


def stage_costs(spec: Spec, parts: Parts, constants: PlanConstants) -> tuple[StageCost, ...]:
    """All stages that the placement has."""
    found = [_rollout(spec, parts)]
    env = spec.environment
    if spec.agentic:
        lines = [
            f"{env.calls:g} calls x {env.latency_s:g} s"
            + (f", {100 * env.failures:g} % of them fail after {env.patience_s:g} s and are made "
               "again" if env.failures else "")
            + f" = {env.mean_s:,.1f} s a trajectory",
            f"longest of {spec.samples:,} about {longest_env_s(env, spec.samples):,.0f} s",
        ]  # fmt: skip
        found.append(_cost(Stage.ENV, env.mean_s, 0, lines))
    if env.reward_s:
        at_once = min(env.judges, spec.samples)
        line = f"{spec.samples:,} verdicts x {env.reward_s:g} s / {at_once} at once"
        found.append(_cost(Stage.REWARD, parts.rollout.reward_s, 0, [line]))
    found += _learner(spec, parts, constants)
    moved = parts.moved
    lines = [f"{moved.mechanism}: {moved.says}" if moved.mechanism else moved.says]
    if moved.exposed_s < moved.seconds:
        lines.append(f"{moved.exposed_s:.2g} s of it hold the learner up: its own copy")
    stage = Stage.SWITCH if parts.kind.shared else Stage.SYNC
    found.append(_cost(stage, moved.seconds, spec.gpus, lines))
    rest = f"{parts.rest_s:g} s: data, packing, advantages, orchestration"
    found.append(_cost(Stage.OTHER, parts.rest_s, spec.gpus, [rest]))
    return tuple(found)


def _rollout(spec: Spec, parts: Parts) -> StageCost:
    made, engine = parts.rollout, parts.rollout.engine
    of = made.lengths
    tokens = spec.response_tokens / made.engines
    rate = engine.tokens_per_s(made.running)
    lines = [
        f"{spec.samples:,} responses of {of.mean:,.0f} tokens on {made.engines:g} engines of "
        f"{engine.ways} GPU{'s' * (engine.ways > 1)}: {made.running:,.0f} sequences at once in each"
        f" ({made.waves:.2g} waves)",
        f"a token takes {1e3 * engine.token_s:.3g} ms + {1e6 * engine.shared_token_s:.3g} us for "
        f"each sequence: {rate:,.0f} tokens/s an engine; weights "
        f"{spec.model.weight_bytes / 1e9:,.0f} GB, cache {spec.model.kv_bytes / 1024:,.0f} KiB a "
        "token",
        f"longest chain {made.chain_tokens:,.0f} tokens x {1e3 * engine.token_s:.3g} ms + "
        f"{tokens:,.0f} tokens x {1e6 * engine.shared_token_s:.3g} us = {made.decode_s:,.0f} s with"
        f" a barrier; {made.throughput_s:,.0f} s without",
        f"{100 * of.cut_share:.2g} % of the responses reach the cap; longest of {spec.samples:,}: "
        f"{of.longest(spec.samples):,.0f} tokens, {of.longest(spec.samples) / of.mean:.1f} times "
        "the mean",
    ]
    return _cost(Stage.ROLLOUT, parts.decoding_s, made.devices, lines)


def _learner(spec: Spec, parts: Parts, constants: PlanConstants) -> list[StageCost]:
    found = []
    work, devices = parts.learner, parts.learner.devices
    peak = devices * spec.gpu.peak
    for stage, seconds in work.serial_s.items():
        if stage is Stage.TRAIN:
            lines = [
                f"{spec.trained_tokens:,.0f} tokens x 6 x {spec.model.active / 1e9:.4g}B + "
                f"attention = {work.flop:.3g} FLOP; {devices:g} x {spec.gpu.tflops:g} TFLOP/s: "
                f"{work.flop / peak:,.1f} s at 100 %, so {100 * work.mfu:.0f} % MFU",
                f"arithmetic {work.arithmetic_s:,.1f} s, collectives {work.collectives_s:,.1f} s, "
                f"pipeline bubble {work.bubble_s:,.1f} s; {work.sharding}",
            ]
            if work.slower > 1:
                lines.append(
                    f"x {work.slower:.2f} on devices that an engine shares: less memory "
                    "for micro-batches, offload"
                )
            if spec.critic:
                lines.append("twice: policy and critic")
        else:
            lines = [
                f"forward: a third of {work.flop / spec.epochs:.3g} FLOP at "
                f"{constants['forward_share']:g} of training's MFU"
            ]
        found.append(_cost(stage, seconds, devices, lines))
    return found


def _cost(stage: Stage, seconds: float, devices: float, lines: list[str]) -> StageCost:
    return StageCost(word(stage), STAGE_SYMBOLS.get(stage, ""), seconds, devices, tuple(lines))


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of a GPU by what they are for, and of how much they may be."""

    where: str
    parts: dict[str, float]
    usable_bytes: float
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether they do."""
        return sum(self.parts.values()) <= self.usable_bytes


def memory_use(spec: Spec, parts: Parts, constants: PlanConstants) -> tuple[MemoryUse, ...]:
    """What training and the engines hold."""
    held, engine = parts.memory, parts.rollout.engine
    stages = zero_bytes(spec.model.parameters, held.devices)
    sharded = ", ".join(f"ZeRO-{s} {b / 1e9:,.1f} GB" for s, b in stages.items() if s != "0")
    notes = [f"unsharded {stages['0'] / 1e9:,.0f} GB (16 bytes a parameter); {sharded}"]
    if held.ways > 1:
        notes.append(f"the longest sequence is split over {held.ways} GPUs")
    if held.recompute:
        notes.append("activations are computed again")
    if held.offloads:
        notes.append("the optimizer lives on the host")
    train = MemoryUse(
        f"training, {held.devices} GPUs, ZeRO-{held.stage}",
        {"state": held.state_bytes, "activations": held.activation_bytes},
        held.usable_bytes,
        tuple(notes),
    )
    gpu = spec.rollout_gpu if spec.rollout_gpu and not parts.kind.shared else spec.gpu
    usable = gpu.memory_bytes * constants["engine_memory_share"]
    each = parts.rollout.running * engine.sequence_bytes / engine.ways
    engines = MemoryUse(
        f"engines, {parts.rollout.engines:g} of {engine.ways} GPU{'s' * (engine.ways > 1)}",
        {"weights": spec.model.weight_bytes / engine.ways, "caches in use": each},
        usable,
        (
            f"{engine.slots:,.0f} sequences fit an engine ({engine.because}); a sequence takes "
            f"{engine.sequence_bytes / 1e9:,.3g} GB of cache on average",
        ),
    )
    return train, engines


# --- walls: what the step would be shorter by if what one takes took none, and all else stayed


@dataclass(frozen=True)
class CostedWall:
    """A wall: its cost as a share of the step (NaN: the shape does not tell), and why."""

    name: str
    share: float
    because: str


@dataclass(frozen=True)
class Walls:
    """All walls, the dearest first, those that cannot be told last."""

    walls: tuple[CostedWall, ...]

    @property
    def binding(self) -> tuple[CostedWall, ...]:
        """Those that bind."""
        return self.walls[: how_many_bind(wall.share for wall in self.walls)]


def how_many_bind(shares: Iterable[float]) -> int:
    """Of walls with these costs, the dearest first: it and those that cost as much within 5 points,
    none where nothing costs 10 %."""
    known = list(shares)
    least = max(BINDS, max(known, default=0.0) - ALIKE)
    return sum(share >= least for share in known)


def costed(parts: Parts) -> Walls:
    """The walls of a placement on one split."""
    made = parts.rollout
    tail_s = max(0.0, made.barrier_s - made.throughput_s)
    rate = made.engine.tokens_per_s(made.running)

    def share(**changes: Any) -> float:
        return max(0.0, 1 - replace(parts, **changes).step_s / parts.step_s)

    stale = "strictly on policy: none"
    if parts.lag_bound:
        stale = (
            f"samples lag by about {parts.lag_bound:g} versions: only a run's ESS tells what that "
            "costs"
        )
    no_tools = replace(
        made, barrier_s=made.decode_s, throughput_s=made.untooled_s, reward_s=0.0,
        env_group_s=0.0, env_pool_s=0.0,
    )  # fmt: skip
    found = [
        CostedWall(
            ROLLOUT,
            share(rollout=replace(made, barrier_s=tail_s, throughput_s=0.0, decoding_s=0.0)),
            f"{made.throughput_s:,.0f} s of decoding at {rate:,.0f} tokens/s an engine",
        ),
        CostedWall(
            TAIL,
            share(rollout=replace(made, barrier_s=made.barrier_s - tail_s)),
            f"a batch waits {tail_s:,.0f} s longer than its work takes"
            + (", which this placement does not" if parts.kind.streams else ""),
        ),
        CostedWall(
            ENV_REWARD,
            share(rollout=no_tools),
            f"verdicts {made.reward_s:,.1f} s a step, tools {made.env_s:,.1f} s a trajectory",
        ),
        CostedWall(
            LEARNER,
            share(learner=replace(parts.learner, serial_s={})),
            f"{parts.learner.total_s:,.0f} s of training and its passes",
        ),
        CostedWall(
            WEIGHTS,
            share(moved=replace(parts.moved, exposed_s=0.0)),
            f"{parts.moved.exposed_s:,.1f} s of switching and moving weights",
        ),
        CostedWall(FRESHNESS, math.nan, stale),
        CostedWall(SPARSE_REWARD, math.nan, "how many groups succeed is only seen in a run"),
        CostedWall(OBSERVABILITY, math.nan, "what the engine's server keeps is only seen in a run"),
    ]
    return Walls(tuple(sorted(found, key=lambda one: -one.share if one.share >= 0 else 1.0)))
