"""The plan: stages with their arithmetic, memory, placements side by side, walls, pools, lags; then
what follows from these."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rltrace.analysis.plan.arithmetic import StageCost, stage_costs
from rltrace.analysis.plan.constants import PlanConstants, constant
from rltrace.analysis.plan.costed_walls import Walls, costed
from rltrace.analysis.plan.costs import rollout
from rltrace.analysis.plan.memory import zero_bytes
from rltrace.analysis.plan.placements import (
    ASYNC,
    COLOCATED,
    DISAGGREGATED,
    KINDS,
    ONE_STEP_OFF,
    PARTIAL,
    THREE_POOLS,
    TRAJECTORY,
    Kind,
    Parts,
    Placed,
    Pools,
    best_parts,
    parts_of,
    place,
    splits,
    usd_per_hour,
)
from rltrace.analysis.plan.spec import Spec
from rltrace.analysis.whatif.bound import walls as replayed_walls
from rltrace.analysis.whatif.predict import Estimate
from rltrace.trace.errors import ANSWER_IS_NO, RltraceError

_NEAR = 1.3
WORTH = 1.1
"""A placement that is less simple has to be this much faster to be preferred."""
_SIMPLEST = (COLOCATED, DISAGGREGATED, PARTIAL, ONE_STEP_OFF, ASYNC, TRAJECTORY, THREE_POOLS)


@dataclass(frozen=True)
class Row:
    """A placement: `step_s` as replayed, useful tokens for each GPU-second and each dollar (NaN:
    no price), how long the learner waits and the engines idle (shares of the step), and its mean
    lag in policy versions. `allowed`: the staleness that was asked for admits it. `refused` says
    why it cannot be (then there are no figures)."""

    name: str
    says: str
    devices: dict[str, int]
    step_s: float
    tokens_per_gpu_s: float
    tokens_per_usd: float
    usd_per_hour: float
    learner_waits_share: float
    rollout_idle_share: float
    mean_lag: float
    lags: dict[int, float]
    allowed: bool
    refused: str = ""


@dataclass(frozen=True)
class SplitPoint:
    """One point of the pool split curve: seconds of both chains, and of the step that they make."""

    rollout: int
    train: int
    rollout_s: float
    learner_s: float
    step_s: float


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


@dataclass(frozen=True)
class Plan:
    """The answer in figures. `best` is the placement that is recommended, `step_s` its step with a
    range: each constant at its ends, alone, in quadrature. `split_curve` is that of the best
    overlapping placement; `balanced_part` of all devices would generate if both chains scaled.
    `env_places` are the sandboxes that are busy on average."""

    spec: Spec
    stages: tuple[StageCost, ...]
    memory: tuple[MemoryUse, ...]
    rows: tuple[Row, ...]
    best: Row
    parts: Parts
    placed: Placed
    step_s: Estimate
    walls: Walls
    replayed_walls: tuple[str, ...]
    split_curve: tuple[SplitPoint, ...]
    balanced_part: float
    env_places: float
    rests_on: tuple[str, ...]

    @property
    def needs_lag(self) -> Row | None:
        """The fastest placement that the staleness asked for forbids, where it is worth its lag."""
        others = [row for row in self.rows if not row.refused and not row.allowed]
        best = min(others, key=lambda row: row.step_s, default=None)
        if best is None or best.step_s * WORTH > self.best.step_s:
            return None
        return best


def plan(spec: Spec) -> Plan:
    """The plan of a workload.

    Errors: `RltraceError` where no placement of it fits on its GPUs, with the number.
    """
    constants = PlanConstants()
    pools = Pools(spec, constants)
    rows, placed = _placements(pools, _kinds(spec))
    best = _best(rows)
    chosen = placed[best.name]
    parts = chosen.parts
    return Plan(
        spec=spec,
        stages=stage_costs(spec, parts, constants),
        memory=_memory(spec, parts, constants),
        rows=tuple(rows),
        best=best,
        parts=parts,
        placed=chosen,
        step_s=_range(spec, parts, chosen.step_s, constants),
        walls=costed(parts),
        replayed_walls=replayed_walls(chosen.load, chosen.played),
        split_curve=_curve(pools, placed, best),
        balanced_part=_balanced(pools),
        env_places=spec.samples / chosen.step_s * spec.environment.mean_s,
        rests_on=constants.sentences(),
    )


def quick(spec: Spec) -> tuple[Row, Walls]:
    """The best placement and its walls, without the rest: a point of a sweep.

    Errors: as `plan`.
    """
    pools = Pools(spec, PlanConstants())
    near = _near(pools)
    rows, placed = _placements(pools, near)
    best = _best(rows)
    chosen = placed[best.name]
    return best, costed(chosen.parts)


def _near(pools: Pools) -> list[Kind]:
    """Placements that may be the best: those that are allowed and, in closed form, nearly as fast
    as the fastest. Errors: as `plan`."""
    found: list[tuple[float, Kind]] = []
    why: RltraceError | None = None
    for kind in _kinds(pools.spec):
        try:
            found.append((best_parts(pools, kind).step_s, kind))
        except RltraceError as error:
            why = why or error
    if not found:
        raise why or RltraceError("there is no placement", ANSWER_IS_NO)
    allowed = [(s, k) for s, k in found if k.least_lag <= pools.spec.lag_bound] or found
    least = min(seconds for seconds, _ in allowed)
    return [kind for seconds, kind in allowed if seconds <= _NEAR * least]


def _kinds(spec: Spec) -> list[Kind]:
    """Those that there are to compare: a third pool only where there are tools to put there."""
    return [kind for kind in KINDS if kind.name != THREE_POOLS or spec.agentic]


def _placements(pools: Pools, kinds: list[Kind]) -> tuple[list[Row], dict[str, Placed]]:
    rows: list[Row] = []
    placed: dict[str, Placed] = {}
    for kind in kinds:
        try:
            placed[kind.name] = place(pools, kind)
        except RltraceError as error:
            rows.append(_refused(pools.spec, kind, str(error)))
            continue
        rows.append(_row(pools.spec, placed[kind.name]))
    if not placed:
        raise RltraceError(rows[0].refused, ANSWER_IS_NO)
    return rows, placed


def _row(spec: Spec, placed: Placed) -> Row:
    parts, played = placed.parts, placed.played
    useful = spec.response_tokens * spec.keep_share * (1 - played.stale_share)
    usd = usd_per_hour(spec, parts.devices)
    return Row(
        name=parts.kind.name,
        says=parts.kind.says,
        devices=parts.devices,
        step_s=played.step_s,
        tokens_per_gpu_s=useful / (played.step_s * spec.gpus),
        tokens_per_usd=useful * 3600 / (played.step_s * usd),
        usd_per_hour=usd,
        learner_waits_share=played.learner_waits_s / played.step_s,
        rollout_idle_share=played.rollout_idle_s / played.step_s,
        mean_lag=played.mean_lag,
        lags=dict(played.lags),
        allowed=parts.kind.least_lag <= spec.lag_bound,
    )


def _refused(spec: Spec, kind: Kind, why: str) -> Row:
    nan = math.nan
    allowed = kind.least_lag <= spec.lag_bound
    return Row(kind.name, kind.says, {}, nan, nan, nan, nan, nan, nan, nan, {}, allowed, why)


def _best(rows: list[Row]) -> Row:
    """Of those that are allowed the simplest that comes near to the fastest for a dollar (for a
    GPU-second, where no price is known)."""
    possible = [row for row in rows if not row.refused]
    allowed = [row for row in possible if row.allowed] or possible

    def worth(row: Row) -> float:
        return row.tokens_per_gpu_s if math.isnan(row.tokens_per_usd) else row.tokens_per_usd

    most = max(map(worth, allowed))
    near = [row for row in allowed if WORTH * worth(row) >= most]
    return min(near, key=lambda row: _SIMPLEST.index(row.name))


def _memory(spec: Spec, parts: Parts, constants: PlanConstants) -> tuple[MemoryUse, ...]:
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
        {"weights": engine.weight_bytes / engine.ways, "caches in use": each},
        usable,
        (
            f"{engine.slots:,.0f} sequences fit an engine ({engine.because}); a sequence takes "
            f"{engine.sequence_bytes / 1e9:,.3g} GB of cache on average",
        ),
    )
    return train, engines


def _range(spec: Spec, parts: Parts, replayed_s: float, constants: PlanConstants) -> Estimate:
    """The step with each constant at either end, on the same split."""
    generating = parts.devices.get("rollout", spec.gpus)
    down = up = 0.0
    for name in list(constants.used):
        ends = constant(name)
        for end in (ends.low, ends.high):
            other = Pools(spec, PlanConstants({name: end}))
            try:
                seconds = parts_of(other, parts.kind, generating).step_s
            except RltraceError:
                continue
            by = math.log(seconds / parts.step_s)
            down, up = down + min(0.0, by) ** 2, up + max(0.0, by) ** 2
    low, high = math.exp(-math.sqrt(down)), math.exp(math.sqrt(up))
    return Estimate(replayed_s * low, replayed_s, replayed_s * high)


def _curve(pools: Pools, placed: dict[str, Placed], best: Row) -> tuple[SplitPoint, ...]:
    spec = replace(pools.spec, split=math.nan)
    apart = [one for one in placed.values() if not one.kind.shared]
    if not apart:
        return ()
    kind = next((p.kind for p in apart if p.kind.name == best.name), None)
    kind = kind or min(apart, key=lambda one: one.step_s).kind
    points = []
    for generating in splits(spec):
        try:
            one = parts_of(pools, kind, generating)
        except RltraceError:
            continue
        streams = kind.played == "async"
        actors_s = one.rollout.throughput_s if streams else one.rollout.barrier_s
        learner_s = one.learner.total_s + one.rest_s
        points.append(
            SplitPoint(generating, spec.gpus - generating, actors_s, learner_s, one.step_s)
        )
    return tuple(points)


def _balanced(pools: Pools) -> float:
    """F = L / (A + L) of the rates of all devices, actors' and learner's: the part that generates
    where both scale (facts of the pipeline: x = g / (g + t))."""
    spec = pools.spec
    try:
        made = rollout(spec, spec.gpus, pools.constants, spec.rollout_gpu)
        learns, _ = pools.learner(spec.gpus)
    except RltraceError:
        return math.nan
    return made.throughput_s / (made.throughput_s + learns.total_s)
