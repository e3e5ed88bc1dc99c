"""The placements of a workload, replayed on the pools that suit them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from rltrace.analysis.plan import stage_costs as costs
from rltrace.analysis.plan.data_sheets import Gpu, Shape
from rltrace.analysis.plan.planned_workload import Spec
from rltrace.analysis.whatif.replay import Replay, replay
from rltrace.analysis.whatif.workload import (
    OVERLAPPING,
    EngineModel,
    PlanConstants,
    SampleBatch,
    StepWorkload,
    SyncModel,
    packaged,
)
from rltrace.trace.errors import ANSWER_IS_NO, RltraceError

_SAMPLES, _GROUP, _BATCHES = 64, 8, 4
_LEAST_GROUPS = 4
_FEW_VERSIONS = 3  # beyond this lag bound more batches are on their way: smaller ones are played
_SPLITS = 24
_MANY_NODES = 8
_CHUNKS = 4
_EVEN = 3  # so many times the lag bound, in steps, a replay takes until its queue is as it stays


def least_lag(placement: str) -> int:
    """The lag, in policy versions, that a placement cannot do without."""
    return int(placement in OVERLAPPING)


@dataclass(frozen=True)
class PlacementCosts:
    """Costs of a placement on one split. `moved`: the weights of an update, or shared devices that
    change sides; `rest_s` is the time of a step in no stage, `lag_bound` is in policy versions."""

    placement: str
    devices: dict[str, int]
    rollout: costs.Rollout
    learner: costs.LearnerCosts
    memory: costs.TrainingMemory
    moved: Movement
    rest_s: float
    lag_bound: float

    @property
    def shared(self) -> bool:
        return "shared" in self.devices

    @property
    def decoding_s(self) -> float:
        """Generation of a step, as the placement has to wait for it."""
        made = self.rollout
        return made.throughput_s if self.placement == "async" else made.barrier_s

    @property
    def step_s(self) -> float:
        """The step in closed form: what takes turns adds up, of what overlaps the longer counts."""
        made, learner_s = self.rollout, self.learner.total_s + self.rest_s
        if self.placement == "async":
            # No more than lag_bound + 1 batches are on their way, each as long as a group.
            on_its_way_s = (made.decoding_s + made.env_group_s) / (1 + self.lag_bound)
            actors_s = max(made.throughput_s, made.reward_s, made.env_pool_s, on_its_way_s)
        else:
            actors_s = made.barrier_s + made.reward_s
        if self.placement in OVERLAPPING:
            return max(actors_s, learner_s) + self.moved.seconds
        return actors_s + learner_s + self.moved.seconds


@dataclass(frozen=True)
class PlacementPlan:
    """A placement on its best split. `load` is what was replayed, `played` what came of it."""

    parts: PlacementCosts
    load: StepWorkload
    played: Replay

    @property
    def step_s(self) -> float:
        return self.played.step_s


class Pools:
    """Costs of pools of any size, each worked out once: `rollout` is generation on so many GPUs,
    `learner` training and `memory` what that holds. Errors: `RltraceError` where nothing fits."""

    def __init__(self, spec: Spec, constants: PlanConstants) -> None:
        self.spec, self.constants = spec, constants
        self.rollout = cache(lambda n, streams: costs.rollout(spec, n, constants, streams))
        self.memory = cache(lambda devices: costs.training_memory(spec, devices, constants))
        self.learner = cache(lambda n, shared: costs.learner(spec, n, constants, shared))


def place(pools: Pools, placement: str) -> PlacementPlan:
    """Replayed on the best split, by the step in closed form. Errors: `RltraceError`: none fits."""
    found: list[PlacementCosts] = []
    refused: list[RltraceError] = []
    for generating in [pools.spec.gpus] if placement == "colocated" else splits(pools.spec):
        try:
            found.append(parts_of(pools, placement, generating))
        except RltraceError as error:
            refused.append(error)
    if not found:
        raise (*refused, RltraceError("one GPU cannot be split into two pools", ANSWER_IS_NO))[0]
    parts = min(found, key=lambda parts: parts.step_s)
    load = workload(pools.spec, parts)
    return PlacementPlan(parts, load, replay(load))


def splits(spec: Spec) -> list[int]:
    total = spec.gpus
    if not math.isnan(spec.split):
        return [min(total - 1, max(1, round(spec.split * total)))] if total > 1 else []
    counts = {max(1, round(total * i / _SPLITS)) for i in range(1, _SPLITS)}
    if total > spec.gpu.node:  # whole nodes, or halves where they are few
        unit = max(1, spec.gpu.node // (1 if total >= _MANY_NODES * spec.gpu.node else 2))
        counts = {max(unit, round(count / unit) * unit) for count in counts}
    return sorted(count for count in counts if 0 < count < total)


def parts_of(pools: Pools, placement: str, generating: int) -> PlacementCosts:
    """Costs on one split (all devices, where they are shared)."""
    spec, constants, made = (
        pools.spec,
        pools.constants,
        pools.rollout(generating, placement == "async"),
    )
    rest_s, lag = constants["step_overhead_s"], float(least_lag(placement))
    shared = placement == "colocated"
    training = generating if shared else spec.gpus - generating
    memory, learns = pools.memory(training), pools.learner(training, shared)
    if shared:
        # Beside the engine's share there is little room: training's state moves out and in.
        room = (1 - constants["engine_memory_share"]) * spec.gpu.memory_bytes
        moved = switch(spec.model, spec.gpu, generating, memory.state_bytes > room, constants)
        devices = {"shared": generating}
    else:
        moved = movement(spec.sync, spec.model, constants, generating)
        devices = {"rollout": generating, "train": training}
        if placement == "async":
            lag = max(lag, useful_lag(made, spec.samples, spec.lag_bound))
    return PlacementCosts(placement, devices, made, learns, memory, moved, rest_s, lag)


def workload(spec: Spec, parts: PlacementCosts) -> StepWorkload:
    """The input of the replay: a small batch for the whole one, on one engine for all."""
    made, engine, env = parts.rollout, parts.rollout.engine, spec.environment
    played = int(_SAMPLES / max(1.0, parts.lag_bound / _FEW_VERSIONS))
    group = min(spec.group, _GROUP, played // _LEAST_GROUPS)
    groups = max(1, min(spec.prompts, played // group))
    n = groups * group
    scale = spec.samples / n
    judges = max(1, round(env.judges / scale))
    batches = tuple(
        SampleBatch(
            tokens=made.lengths.batch(groups, group, spec.samples, seed).ravel(),
            env_s=env.seconds(n, seed) * max(1.0, spec.samples / env.workers),
            # Fewer judges stand for all of them, at the same rate.
            verdict_s=np.full(n, env.reward_s * judges * scale / env.judges),
            group=tuple(np.repeat(np.arange(groups), group).tolist()),
        )
        for seed in range(_BATCHES)
    )
    batches *= max(1, math.ceil(_EVEN * parts.lag_bound / _BATCHES))
    tokens = float(np.mean([batch.tokens.sum() for batch in batches]))
    prefill = engine.prefill_s * spec.prompts / made.engines
    moved = parts.moved
    return StepWorkload(
        placement=parts.placement, batches=batches,
        engine=EngineModel(
            workers=1.0, slots=max(1.0, made.engines * engine.slots / scale),
            token_s=engine.token_s,
            shared_token_s=engine.shared_token_s * scale / made.engines + prefill / tokens,
            pooled=True, stands_for=scale / made.engines,
        ),
        serial_s={stage: (seconds,) for stage, seconds in parts.learner.serial_s.items()},
        rest_s=parts.rest_s, switch_s=moved.seconds if parts.shared else 0.0,
        reward_workers=judges, scoring="sample" if env.reward_s else "group",
        chunks=_CHUNKS if parts.placement == "async" else 1,
        sync=SyncModel() if parts.shared else SyncModel(moved.seconds, 0.0, moved.bytes),
        lag_bound=parts.lag_bound,
        devices={pool: float(count) for pool, count in parts.devices.items()},
        useful_tokens=spec.response_tokens, usd_per_device_hour=spec.usd_per_hour,
    )  # fmt: skip


MOST_PLANNED = 16.0
"""Versions beyond which nothing is planned: twice the 8 at which asynchronous jobs are bounded by
default (verl, prime-rl), and the longer a replay has to be until it is even, the slower it is."""


def useful_lag(made: costs.Rollout, samples: int, asked: float) -> float:
    """The bound to plan with, in policy versions: what is `asked`, or the least that keeps the
    engines full; what is begun beyond only waits for a slot and grows old there. By Little's law
    slots x (decoding + tools) / decoding / samples of a step batches are on their way, and one is
    with the learner."""
    outside = made.env_s / made.decoding_s if made.decoding_s > 0 else 0.0
    on_their_way = made.engines * made.engine.slots * (1 + outside) / samples
    return min(asked, math.ceil(min(on_their_way, MOST_PLANNED)) + 1.0, MOST_PLANNED)


# --- moving weights from learner to rollout, by mechanism (data/mechanisms.toml)


@dataclass(frozen=True)
class Movement:
    """An update, its arithmetic in words; no mechanism where shared devices change sides."""

    mechanism: str
    seconds: float
    bytes: float
    says: str


def movement(
    mechanism: str, shape: Shape, constants: PlanConstants, receivers: float, bytes_each: float = 2
) -> Movement:
    """One update of all weights to `receivers` GPUs, or of what a step changes of them."""
    size = sent = bytes_each * shape.parameters
    of = packaged("mechanisms")[mechanism]
    parts = ("fixed", "tensor", "rate")
    fixed, each, rate = (constants[of[part]] if part in of else 0.0 for part in parts)
    if of.get("from_each"):
        rate *= receivers
    if of.get("changed"):
        sent *= constants["changed_share"]
    tensors = f" + {shape.tensors:,.0f} tensors × {1e3 * each:.2g} ms" if each else ""
    says = f"{mechanism}: {fixed:.2g} s{tensors} + {sent / 1e9:,.3g} GB / {rate:,.3g} GB/s"
    return Movement(mechanism, fixed + each * shape.tensors + sent / (1e9 * rate), size, says)


def switch(
    shape: Shape, gpu: Gpu, devices: float, offloads: bool, constants: PlanConstants
) -> Movement:
    """Shared devices that change sides, there and back: sleep and wake, training's state to the
    host and back where it does not fit beside the engine, and weights in the engines' layout."""
    fixed = constants["switch_fixed_s"]
    moved = 2 * 16 * shape.parameters / devices / (1e9 * gpu.host_gb_per_s) if offloads else 0.0
    # Tensor by tensor every GPU receives nearly all of them and keeps its part.
    rate = gpu.link(devices) * constants["reshard_link_share"]
    resharded = shape.weight_bytes / rate + constants["bucketed_tensor_s"] * shape.tensors
    says = f"{fixed:.2g} s sleep and wake + {moved:.2g} s offload + {resharded:.2g} s reshard"
    return Movement("", fixed + moved + resharded, shape.weight_bytes, says)
