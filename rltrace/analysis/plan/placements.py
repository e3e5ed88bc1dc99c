"""The placements of a workload, each replayed on the pools that suit it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import numpy as np

from rltrace.analysis.plan.constants import PlanConstants
from rltrace.analysis.plan.generation import Rollout, env_seconds, rollout
from rltrace.analysis.plan.hardware import Gpu, broadcast_s
from rltrace.analysis.plan.learner import (
    Learner,
    TrainingMemory,
    beside_an_engine,
    learner,
    training_memory,
)
from rltrace.analysis.plan.shapes import Shape
from rltrace.analysis.plan.spec import Spec
from rltrace.analysis.whatif.replay import Replay, replay
from rltrace.analysis.whatif.workload import Batch, Engine, Sync, Workload
from rltrace.trace.errors import ANSWER_IS_NO, RltraceError, WrongUsage

_Choice = TypeVar("_Choice")
_Made = TypeVar("_Made")

COLOCATED, PARTIAL = "colocated", "colocated, partial rollout"
DISAGGREGATED, ONE_STEP_OFF = "disaggregated", "one-step-off"
ASYNC, TRAJECTORY, THREE_POOLS = "async", "trajectory-level async", "three pools"

_SAMPLES, _GROUP, _BATCHES = 64, 8, 4
_LEAST_GROUPS = 4
_FEW_VERSIONS = 3
"""With larger lag bounds batches that are as many times smaller are played: more of them are on
their way, and as many samples."""
_SPLITS = 24
_MANY_NODES = 8
_IN_FLIGHT = 1.5
_CHUNKS = 4
_EVEN = 3
"""So many times the lag bound, in steps, a replay takes until its queue is as it stays."""


@dataclass(frozen=True)
class Kind:
    """A placement: the replay's name for it, whether devices are shared, the lag that it cannot do
    without, and what it is in words."""

    name: str
    played: str
    shared: bool
    least_lag: float
    says: str

    @property
    def streams(self) -> bool:
        """Whether generation goes on without waiting for the longest of a batch."""
        return self.played == "async" or self.name == PARTIAL

    @property
    def own_updates(self) -> bool:
        """Whether engines take weights when it suits them, from a copy."""
        return self.name in (TRAJECTORY, THREE_POOLS)


KINDS = (
    Kind(COLOCATED, "colocated", True, 0, "all GPUs generate, then all train"),
    Kind(PARTIAL, "colocated", True, 1, "the same; a batch is full with the first groups that end"),
    Kind(DISAGGREGATED, "disaggregated", False, 0, "pools of their own that take turns"),
    Kind(ONE_STEP_OFF, "one-step-off", False, 1, "the next batch is generated while one trains"),
    Kind(ASYNC, "async", False, 1, "generation never waits for a batch, within the lag bound"),
    Kind(TRAJECTORY, "async", False, 1,
         "each trajectory on its own: partial rollout, repacking, weights through relays"),
    Kind(THREE_POOLS, "async", False, 1,
         "the same, and environments in a pool that is large enough"),
)  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """Costs of a placement on one split. `moved` are the weights of an update, or shared devices
    that change sides; `rest_s` is the time of a step in no stage, `lag_bound` the lag that is
    planned with, in policy versions."""

    kind: Kind
    devices: dict[str, int]
    rollout: Rollout
    learner: Learner
    memory: TrainingMemory
    moved: Movement
    rest_s: float
    lag_bound: float

    @property
    def decoding_s(self) -> float:
        """Generation of a step, as the placement has to wait for it."""
        made = self.rollout
        return made.throughput_s if self.kind.streams else made.barrier_s

    @property
    def step_s(self) -> float:
        """The step in closed form: what takes turns adds up, of what overlaps the longer counts."""
        learner_s = self.learner.total_s + self.rest_s
        if self.kind.played == "async":
            actors_s = max(self.rollout.throughput_s, self.rollout.reward_s)
            if self.kind.name != THREE_POOLS:
                actors_s = max(actors_s, self.rollout.env_pool_s)
            # No more than lag_bound + 1 batches are on their way, each as long as a group.
            on_its_way_s = self.rollout.decoding_s + self.rollout.env_group_s
            actors_s = max(actors_s, on_its_way_s / (1 + self.lag_bound))
            return max(actors_s, learner_s) + self.moved.exposed_s
        actors_s = self.rollout.reward_s + self.decoding_s
        if self.kind.played == "one-step-off":
            return max(actors_s, learner_s) + self.moved.exposed_s
        return actors_s + learner_s + self.moved.exposed_s


@dataclass(frozen=True)
class Placed:
    """A placement on its best split. `load` is what was replayed, `played` what came of it."""

    parts: Parts
    load: Workload
    played: Replay

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.played.step_s


class Pools:
    """Costs of pools of any size, each worked out once: `rollout` is generation on so many GPUs,
    `learner` training and its memory. Errors: `RltraceError` where nothing fits."""

    def __init__(self, spec: Spec, constants: PlanConstants) -> None:
        self.spec, self.constants = spec, constants
        self.rollout, self.learner = cache(self._rollout), cache(self._learner)

    def _rollout(self, devices: int) -> Rollout:
        gpu = self.spec.rollout_gpu if devices < self.spec.gpus else None
        return rollout(self.spec, devices, self.constants, gpu)

    def _learner(self, devices: int) -> tuple[Learner, TrainingMemory]:
        memory = training_memory(self.spec, devices, self.constants)
        return learner(self.spec, devices, self.constants), memory


def that_fit(
    choices: Iterable[_Choice], make: Callable[[_Choice], _Made]
) -> tuple[list[_Made], list[RltraceError]]:
    """What is made of those choices that fit, and why the others do not."""
    found: list[_Made] = []
    refused: list[RltraceError] = []
    for choice in choices:
        try:
            found.append(make(choice))
        except RltraceError as error:
            refused.append(error)
    return found, refused


def place(pools: Pools, kind: Kind) -> Placed:
    """The placement on its best split, replayed. Errors: `RltraceError` where no split of the GPUs
    holds it."""
    parts = best_parts(pools, kind)
    load = workload(pools.spec, parts)
    return Placed(parts, load, replay(load))


def best_parts(pools: Pools, kind: Kind) -> Parts:
    """Costs on the best split, by the step in closed form."""
    if kind.shared:
        return parts_of(pools, kind, pools.spec.gpus)
    found, refused = that_fit(splits(pools.spec), lambda count: parts_of(pools, kind, count))
    if not found:
        raise (*refused, RltraceError("one GPU cannot be split into two pools", ANSWER_IS_NO))[0]
    return min(found, key=lambda parts: parts.step_s)


def splits(spec: Spec) -> list[int]:
    """Devices for generation that are tried."""
    total = spec.gpus
    if not math.isnan(spec.split):
        return [min(total - 1, max(1, round(spec.split * total)))] if total > 1 else []
    counts = {max(1, round(total * i / _SPLITS)) for i in range(1, _SPLITS)}
    if total > spec.gpu.node:  # whole nodes, or halves where they are few
        unit = max(1, spec.gpu.node // (1 if total >= _MANY_NODES * spec.gpu.node else 2))
        counts = {max(unit, round(count / unit) * unit) for count in counts}
    return sorted(count for count in counts if 0 < count < total)


def parts_of(pools: Pools, kind: Kind, generating: int) -> Parts:
    """Costs on one split (all devices, where they are shared). Errors: `RltraceError` where it does
    not fit."""
    spec, constants = pools.spec, pools.constants
    made = pools.rollout(generating)
    rest_s = constants["step_overhead_s"]
    lag = kind.least_lag
    if kind.shared:
        learns, memory = pools.learner(generating)
        learns = beside_an_engine(learns, constants)
        # Beside the engine's share there is little room: training's state moves out and in.
        room = (1 - constants["engine_memory_share"]) * spec.gpu.memory_bytes
        offloads = memory.state_bytes > room
        moved = switch(spec.model, spec.gpu, generating, offloads, constants)
        return Parts(kind, {"shared": generating}, made, learns, memory, moved, rest_s, lag)
    learns, memory = pools.learner(spec.gpus - generating)
    mechanism = spec.sync or ("relay" if kind.own_updates else "bucketed")
    moved = movement(mechanism, spec.model, constants, generating)
    if kind.own_updates:  # relays take a copy from the learner and do the rest beside it
        moved = replace(moved, exposed_s=min(memory.stall_s, moved.seconds))
    devices = {"rollout": generating, "train": spec.gpus - generating}
    if kind.played == "async":
        lag = max(lag, useful_lag(made, spec.samples, spec.lag_bound))
    return Parts(kind, devices, made, learns, memory, moved, rest_s, lag)


def workload(spec: Spec, parts: Parts) -> Workload:
    """The input of the replay: a small batch that stands for the whole one, on one engine that
    stands for all."""
    made, kind = parts.rollout, parts.kind
    played = int(_SAMPLES / max(1.0, parts.lag_bound / _FEW_VERSIONS))
    group = min(spec.group, _GROUP, played // _LEAST_GROUPS)
    groups = max(1, min(spec.prompts, played // group))
    n = groups * group
    scale = spec.samples / n
    engine, env = made.engine, spec.environment
    judges = max(1, round(env.judges / scale))
    queued = 1.0 if kind.name == THREE_POOLS else max(1.0, spec.samples / env.workers)
    batches = tuple(
        Batch(
            tokens=made.lengths.batch(groups, group, spec.samples, seed).ravel(),
            env_s=env_seconds(env, n, seed) * queued,
            # Fewer judges stand for all of them, at the same rate.
            verdict_s=np.full(n, env.reward_s * judges * scale / env.judges),
            group=tuple(np.repeat(np.arange(groups), group).tolist()),
        )
        for seed in range(_BATCHES)
    )
    batches *= max(1, math.ceil(_EVEN * parts.lag_bound / _BATCHES))
    tokens = float(np.mean([batch.tokens.sum() for batch in batches]))
    prefill = engine.prefill_s * spec.prompts / made.engines
    slots = made.engines * engine.slots / scale
    moved, sync = parts.moved, Sync()
    if not kind.shared:
        hidden = 1 - moved.exposed_s / moved.seconds if moved.seconds else 0.0
        sync = Sync(moved.seconds, hidden, moved.bytes)
    return Workload(
        placement=kind.played,
        batches=batches,
        engine=Engine(
            workers=1.0,
            slots=max(1.0, slots),
            token_s=engine.token_s,
            shared_token_s=engine.shared_token_s * scale / made.engines + prefill / tokens,
            pooled=True,
            stands_for=scale / made.engines,
        ),
        serial_s={stage: (seconds,) for stage, seconds in parts.learner.serial_s.items()},
        rest_s=parts.rest_s,
        switch_s=moved.seconds if kind.shared else 0.0,
        reward_workers=judges,
        scoring="sample" if env.reward_s else "group",
        chunks=_CHUNKS if kind.played == "async" else 1,
        sync=sync,
        lag_bound=parts.lag_bound,
        in_flight=_IN_FLIGHT if kind.name == PARTIAL else 1.0,
        keeps_unfinished=kind.name == PARTIAL,
        devices={pool: float(count) for pool, count in parts.devices.items()},
        useful_tokens=spec.response_tokens * spec.keep_share,
        usd_per_device_hour=spec.usd_per_hour,
    )


# --- how much lag an asynchronous job has a use for, of what it may have
# A lag bound lets a job begin batches ahead of the learner. That is worth something until the
# engines are full, with as many sequences again as are at their tools: what is begun beyond only
# waits for a slot and grows old there. By Little's law so many batches are then on their way:
#
#     slots x (decoding + tools) / decoding / samples of a step
#
# and one more is with the learner.

MOST_PLANNED = 16.0
"""Versions beyond which nothing is planned: twice the 8 at which asynchronous jobs are bounded by
default (verl, prime-rl), and the longer a replay has to be until it is even, the slower it is."""


def useful_lag(made: Rollout, samples: int, asked: float) -> float:
    """The bound to plan with, in policy versions: what is `asked`, or the least that keeps the
    engines of `made` full with steps of so many samples."""
    outside = made.env_s / made.decoding_s if made.decoding_s > 0 else 0.0
    on_their_way = made.engines * made.engine.slots * (1 + outside) / samples
    return min(asked, math.ceil(min(on_their_way, MOST_PLANNED)) + 1.0, MOST_PLANNED)


# --- moving weights from learner to rollout, by mechanism: what a link could do says little
# Published times of one mechanism follow a fixed cost, a cost for each tensor (which is why many
# small experts are the worst), and bytes over a bandwidth of the mechanism's own.

_MOVED_BY = {
    "naive": ("sync_fixed_s", "tensor_s", "naive_link_gb_per_s"),
    "bucketed": ("sync_latency_s", "bucketed_tensor_s", "bucketed_link_gb_per_s"),
    "relay": ("sync_latency_s", "", "relay_link_gb_per_s"),
    "delta": ("sync_fixed_s", "", "delta_link_gb_per_s"),
    "direct": ("", "", "direct_gpu_gb_per_s"),
}
"""Constants of a mechanism: seconds of an update, of each tensor, and the bandwidth."""


@dataclass(frozen=True)
class Movement:
    """An update: seconds, of which `exposed_s` are hidden by nothing, and the arithmetic in words.
    Shared devices that change sides have no mechanism."""

    mechanism: str
    seconds: float
    exposed_s: float
    bytes: float
    says: str


def movement(
    mechanism: str,
    shape: Shape,
    constants: PlanConstants,
    receivers: float = 8.0,
    bytes_each: float = 2.0,
) -> Movement:
    """One update of all weights to `receivers` GPUs. Errors: `RltraceError` for an unknown
    mechanism."""
    size = bytes_each * shape.parameters
    giga = 1e9
    if mechanism not in _MOVED_BY:
        raise WrongUsage(f"--sync must be one of {', '.join(_MOVED_BY)}, not {mechanism!r}")
    fixed, each, rate = (constants[name] if name else 0.0 for name in _MOVED_BY[mechanism])
    rate *= giga
    if mechanism == "direct":
        rate *= max(1.0, receivers)
    hop_s = constants["hop_latency_far_s"] if mechanism == "relay" else 0.0
    moved_s = broadcast_s(size, 1 + receivers, rate, hop_s)
    seconds = fixed + each * shape.tensors + moved_s
    tensors = f" + {shape.tensors:,.0f} tensors x {1e3 * each:.2g} ms" if each else ""
    says = f"{fixed:.2g} s{tensors} + {size / giga:,.0f} GB / {rate / giga:,.3g} GB/s"
    return Movement(mechanism, seconds, seconds, size, says)


def switch(
    shape: Shape, gpu: Gpu, devices: float, offloads: bool, constants: PlanConstants
) -> Movement:
    """Shared devices that change sides, there and back: sleep and wake, training's state to the
    host and back where it does not fit beside the engine, and weights in the engines' layout."""
    fixed = constants["switch_fixed_s"]
    state = 16 * shape.parameters / devices if offloads else 0.0
    moved = 2 * state / (1e9 * gpu.host_gb_per_s)
    # Tensor by tensor every GPU receives nearly all of them and keeps its part.
    rate = gpu.link(devices) * constants["reshard_link_share"]
    resharded = shape.weight_bytes / rate + constants["bucketed_tensor_s"] * shape.tensors
    says = f"{fixed:.2g} s sleep and wake + {moved:.2g} s offload + {resharded:.2g} s reshard"
    seconds = fixed + moved + resharded
    return Movement("", seconds, seconds, shape.weight_bytes, says)
