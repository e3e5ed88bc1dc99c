"""The placements of a workload, side by side: each is a workload of the what-if replay, on pools
split as suits it best."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.plan.constants import PlanConstants
from rltrace.analysis.plan.costs import (
    Learner,
    Rollout,
    beside_an_engine,
    env_seconds,
    learner,
    rollout,
)
from rltrace.analysis.plan.memory import TrainingMemory, training_memory
from rltrace.analysis.plan.spec import Spec
from rltrace.analysis.plan.weights import Movement, movement, switch_s
from rltrace.analysis.whatif.replay import Replay, replay
from rltrace.analysis.whatif.workload import Batch, Engine, Sync, Workload
from rltrace.trace.errors import ANSWER_IS_NO, RltraceError

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
    """Costs of a placement on one split. `exposed_sync_s` is the part of an update that nothing
    hides, `rest_s` the time of a step in no stage; `lag_bound` the lag that is planned with, in
    policy versions."""

    kind: Kind
    devices: dict[str, int]
    rollout: Rollout
    learner: Learner
    memory: TrainingMemory
    sync: Movement | None
    switch_s: float
    switch_says: str
    exposed_sync_s: float
    rest_s: float
    lag_bound: float = 0.0

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
            return max(actors_s, learner_s) + self.exposed_sync_s
        actors_s = self.rollout.reward_s
        partial = self.kind.name == PARTIAL
        actors_s += self.rollout.throughput_s if partial else self.rollout.barrier_s
        if self.kind.played == "one-step-off":
            return max(actors_s, learner_s) + self.exposed_sync_s
        return actors_s + learner_s + self.exposed_sync_s + self.switch_s


@dataclass(frozen=True)
class Placed:
    """A placement on its best split. `load` is what was replayed, `played` what came of it."""

    parts: Parts
    load: Workload
    played: Replay

    @property
    def kind(self) -> Kind:
        """Which placement it is."""
        return self.parts.kind

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.played.step_s


class Pools:
    """Costs of pools of any size, each worked out once. Errors are kept and raised again."""

    def __init__(self, spec: Spec, constants: PlanConstants) -> None:
        self.spec, self.constants = spec, constants
        self._known: dict[tuple[str, int], Rollout | Learner | TrainingMemory | RltraceError] = {}

    def rollout(self, devices: int) -> Rollout:
        """Generation on so many GPUs. Errors: `RltraceError` where no engine fits."""
        gpu = self.spec.rollout_gpu if devices < self.spec.gpus else None
        found = self._once(
            "rollout", devices, lambda: rollout(self.spec, devices, self.constants, gpu)
        )
        assert isinstance(found, Rollout)
        return found

    def learner(self, devices: int) -> tuple[Learner, TrainingMemory]:
        """Training on so many GPUs, and its memory. Errors: `RltraceError` where nothing fits."""
        memory = self._once(
            "memory", devices, lambda: training_memory(self.spec, devices, self.constants)
        )
        learns = self._once("learner", devices, lambda: learner(self.spec, devices, self.constants))
        assert isinstance(learns, Learner)
        assert isinstance(memory, TrainingMemory)
        return learns, memory

    def _once(
        self, what: str, devices: int, work: Callable[[], Rollout | Learner | TrainingMemory]
    ) -> Rollout | Learner | TrainingMemory:
        if (what, devices) not in self._known:
            try:
                self._known[what, devices] = work()
            except RltraceError as error:
                self._known[what, devices] = error
        found = self._known[what, devices]
        if isinstance(found, RltraceError):
            raise found
        return found


def place(pools: Pools, kind: Kind) -> Placed:
    """The placement on its best split, replayed.

    Errors: `RltraceError` where no split of the GPUs holds it.
    """
    parts = best_parts(pools, kind)
    load = workload(pools.spec, parts)
    return Placed(parts, load, replay(load))


def best_parts(pools: Pools, kind: Kind) -> Parts:
    """Costs on the best split, by the step in closed form."""
    total = pools.spec.gpus
    if kind.shared:
        return parts_of(pools, kind, total)
    found: Parts | None = None
    why: RltraceError | None = None
    for generating in splits(pools.spec):
        try:
            one = parts_of(pools, kind, generating)
        except RltraceError as error:
            why = why or error
            continue
        if found is None or one.step_s < found.step_s:
            found = one
    if found is None:
        raise why or RltraceError("one GPU cannot be split into two pools", ANSWER_IS_NO)
    return found


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
    if kind.shared:
        learns, memory = pools.learner(generating)
        learns = beside_an_engine(learns, constants)
        # Beside the engine's share there is little room: training's state moves out and in.
        room = (1 - constants["engine_memory_share"]) * spec.gpu.memory_bytes
        seconds, says = switch_s(
            spec.model, spec.gpu, generating, memory.state_bytes > room, constants
        )
        return Parts(
            kind, {"shared": generating}, made, learns, memory, None, seconds, says, 0.0, rest_s,
            kind.least_lag,
        )  # fmt: skip
    learns, memory = pools.learner(spec.gpus - generating)
    streams = kind.name in (TRAJECTORY, THREE_POOLS)
    mechanism = spec.sync or ("relay" if streams else "bucketed")
    update = movement(mechanism, spec.model, constants, generating)
    # Relays take a copy from the learner and do the rest beside it.
    exposed_s = min(memory.stall_s, update.seconds) if streams else update.seconds
    devices = {"rollout": generating, "train": spec.gpus - generating}
    lag = kind.least_lag
    if kind.played == "async":
        lag = max(lag, useful_lag(made, spec.samples, spec.lag_bound))
    return Parts(kind, devices, made, learns, memory, update, 0.0, "", exposed_s, rest_s, lag)


def workload(spec: Spec, parts: Parts) -> Workload:
    """The input of the replay: a small batch that stands for the whole one, on one engine that
    stands for all."""
    made, kind = parts.rollout, parts.kind
    played = int(_SAMPLES / max(1.0, parts.lag_bound / _FEW_VERSIONS))
    group = min(spec.group, _GROUP, played // _LEAST_GROUPS)
    groups = max(1, min(spec.prompts, played // group))
    n = groups * group
    scale = spec.samples / n
    engine = made.engine
    batches = tuple(_batch(spec, made, groups, group, seed, kind) for seed in range(_BATCHES))
    batches *= max(1, math.ceil(_EVEN * parts.lag_bound / _BATCHES))
    tokens = float(np.mean([batch.tokens.sum() for batch in batches]))
    prefill = engine.prefill_s * spec.prompts / made.engines
    slots = made.engines * engine.slots / scale
    judges = max(1, round(spec.environment.judges / scale))
    async_ = kind.played == "async"
    sync = Sync()
    if parts.sync is not None:
        hidden = 1 - parts.exposed_sync_s / parts.sync.seconds if parts.sync.seconds else 0.0
        sync = Sync(parts.sync.seconds, hidden, parts.sync.bytes, parts.sync.mechanism)
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
        switch_s=parts.switch_s,
        reward_workers=judges,
        scoring="sample" if spec.environment.reward_s else "group",
        chunks=_CHUNKS if async_ else 1,
        sync=sync,
        lag_bound=parts.lag_bound,
        in_flight=_IN_FLIGHT if kind.name == PARTIAL else 1.0,
        keeps_unfinished=kind.name == PARTIAL,
        devices={pool: float(count) for pool, count in parts.devices.items()},
        useful_tokens=spec.response_tokens * spec.keep_share,
        usd_per_device_hour=spec.usd_per_hour,
        parameters=spec.model.parameters,
    )


def _batch(spec: Spec, made: Rollout, groups: int, group: int, seed: int, kind: Kind) -> Batch:
    n = groups * group
    env = spec.environment
    slower = 1.0
    if math.isfinite(env.workers) and kind.name != THREE_POOLS:
        slower = max(1.0, spec.samples / env.workers)
    scale = spec.samples / n
    judges = max(1, round(env.judges / scale))
    return Batch(
        tokens=made.lengths.batch(groups, group, spec.samples, seed).ravel(),
        env_s=env_seconds(env, n, seed) * slower,
        # Fewer judges stand for all of them, at the same rate.
        verdict_s=np.full(n, env.reward_s * judges * scale / env.judges),
        group=tuple(np.repeat(np.arange(groups), group).tolist()),
    )


def usd_per_hour(spec: Spec, devices: dict[str, int]) -> float:
    """What the pools cost an hour; NaN where a price is not known."""
    if spec.rollout_gpu is not None and "rollout" in devices:
        of_rollout = devices["rollout"] * spec.rollout_usd_per_hour
        return of_rollout + devices["train"] * spec.usd_per_hour
    return sum(devices.values()) * spec.usd_per_hour


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
