"""Each stage's seconds with the arithmetic that they come from, in words."""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.analysis.plan.constants import PlanConstants
from rltrace.analysis.plan.costs import longest_env_s
from rltrace.analysis.plan.placements import PARTIAL, Parts
from rltrace.analysis.plan.spec import Spec
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
    if parts.sync is not None:
        hidden = parts.exposed_sync_s < parts.sync.seconds
        lines = [f"{parts.sync.mechanism}: {parts.sync.says}"]
        if hidden:
            lines.append(f"{parts.exposed_sync_s:.2g} s of it hold the learner up: its own copy")
        found.append(_cost(Stage.SYNC, parts.sync.seconds, spec.gpus, lines))
    if parts.switch_s:
        found.append(_cost(Stage.SWITCH, parts.switch_s, spec.gpus, [parts.switch_says]))
    rest = f"{parts.rest_s:g} s: data, packing, advantages, orchestration"
    found.append(_cost(Stage.OTHER, parts.rest_s, spec.gpus, [rest]))
    return tuple(found)


def _rollout(spec: Spec, parts: Parts) -> StageCost:
    made, engine = parts.rollout, parts.rollout.engine
    of = made.lengths
    streams = parts.kind.played == "async" or parts.kind.name == PARTIAL
    tokens = spec.response_tokens / made.engines
    rate = engine.tokens_per_s(made.running)
    lines = [
        f"{spec.samples:,} responses of {of.mean:,.0f} tokens on {made.engines:g} engines of "
        f"{engine.ways} GPU{'s' * (engine.ways > 1)}: {made.running:,.0f} sequences at once in each"
        f" ({made.waves:.2g} waves)",
        f"a token takes {1e3 * engine.token_s:.3g} ms + {1e6 * engine.shared_token_s:.3g} us for "
        f"each sequence: {rate:,.0f} tokens/s an engine; weights {engine.weight_bytes / 1e9:,.0f} "
        f"GB, cache {spec.model.kv_bytes / 1024:,.0f} KiB a token",
        f"longest chain {made.chain_tokens:,.0f} tokens x {1e3 * engine.token_s:.3g} ms + "
        f"{tokens:,.0f} tokens x {1e6 * engine.shared_token_s:.3g} us = {made.decode_s:,.0f} s with"
        f" a barrier; {made.throughput_s:,.0f} s without",
        f"{100 * of.cut_share:.2g} % of the responses reach the cap; longest of {spec.samples:,}: "
        f"{of.longest(spec.samples):,.0f} tokens, {of.longest(spec.samples) / of.mean:.1f} times "
        "the mean",
    ]
    seconds = made.throughput_s if streams else made.barrier_s
    return _cost(Stage.ROLLOUT, seconds, made.devices, lines)


def _learner(spec: Spec, parts: Parts, constants: PlanConstants) -> list[StageCost]:
    found = []
    work = parts.learner.training
    devices = parts.learner.devices
    peak = devices * spec.gpu.peak
    for stage, seconds in parts.learner.serial_s.items():
        if stage is Stage.TRAIN:
            lines = [
                f"{spec.trained_tokens:,.0f} tokens x 6 x {spec.model.active / 1e9:.4g}B + "
                f"attention = {work.flop:.3g} FLOP; {devices:g} x {spec.gpu.tflops:g} TFLOP/s: "
                f"{work.flop / peak:,.1f} s at 100 %, so {100 * work.mfu:.0f} % MFU",
                f"arithmetic {work.arithmetic_s:,.1f} s, collectives {work.collectives_s:,.1f} s, "
                f"pipeline bubble {work.bubble_s:,.1f} s; {work.sharding}",
            ]
            if parts.learner.slower > 1:
                lines.append(
                    f"x {parts.learner.slower:.2f} on devices that an engine shares: less memory "
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
