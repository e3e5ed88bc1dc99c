"""The plan: the best placement of a workload, what it is made of, and sweeps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from rltrace.analysis.plan.breakdown import (
    MemoryUse,
    StageCost,
    Walls,
    costed,
    memory_use,
    stage_costs,
)
from rltrace.analysis.plan.constants import PlanConstants, check_limits, table
from rltrace.analysis.plan.generation import rollout
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
    that_fit,
)
from rltrace.analysis.plan.spec import Spec
from rltrace.analysis.stats.estimate import Estimate
from rltrace.trace.errors import ANSWER_IS_NO, RltraceError, WrongUsage

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
    devices: dict[str, int] = field(default_factory=dict)
    step_s: float = math.nan
    tokens_per_gpu_s: float = math.nan
    tokens_per_usd: float = math.nan
    usd_per_hour: float = math.nan
    learner_waits_share: float = math.nan
    rollout_idle_share: float = math.nan
    mean_lag: float = math.nan
    lags: dict[int, float] = field(default_factory=dict)
    allowed: bool = True
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
    placed: Placed
    step_s: Estimate
    walls: Walls
    split_curve: tuple[SplitPoint, ...]
    balanced_part: float
    env_places: float
    rests_on: tuple[str, ...]

    @property
    def parts(self) -> Parts:
        """Costs of the best placement."""
        return self.placed.parts

    @property
    def needs_lag(self) -> Row | None:
        """The fastest placement that the staleness asked for forbids, where it is worth its lag."""
        others = [row for row in self.rows if not row.refused and not row.allowed]
        best = min(others, key=lambda row: row.step_s, default=None)
        if best is None or best.step_s * WORTH > self.best.step_s:
            return None
        return best


def plan(spec: Spec) -> Plan:
    """The plan of a workload. Errors: `RltraceError` where no placement of it fits on its GPUs,
    with the number."""
    constants = PlanConstants()
    pools = Pools(spec, constants)
    rows, placed = _placements(pools, _kinds(spec))
    best = _best(rows)
    chosen = placed[best.name]
    parts = chosen.parts
    return Plan(
        spec=spec,
        stages=stage_costs(spec, parts, constants),
        memory=memory_use(spec, parts, constants),
        rows=tuple(rows),
        best=best,
        placed=chosen,
        step_s=_range(spec, parts, chosen.step_s, constants),
        walls=costed(parts),
        split_curve=_curve(pools, placed, best),
        balanced_part=_balanced(pools),
        env_places=spec.samples / chosen.step_s * spec.environment.mean_s,
        rests_on=constants.sentences(),
    )


def _kinds(spec: Spec) -> list[Kind]:
    """Those that there are to compare: a third pool only where there are tools to put there."""
    return [kind for kind in KINDS if kind.name != THREE_POOLS or spec.agentic]


def _placements(pools: Pools, kinds: list[Kind]) -> tuple[list[Row], dict[str, Placed]]:
    rows: list[Row] = []
    placed: dict[str, Placed] = {}
    for kind in kinds:
        allowed = kind.least_lag <= pools.spec.lag_bound
        try:
            placed[kind.name] = place(pools, kind)
        except RltraceError as error:
            rows.append(Row(kind.name, kind.says, allowed=allowed, refused=str(error)))
            continue
        rows.append(_row(pools.spec, placed[kind.name], allowed))
    if not placed:
        raise RltraceError(rows[0].refused, ANSWER_IS_NO)
    return rows, placed


def _row(spec: Spec, placed: Placed, allowed: bool) -> Row:
    parts, played = placed.parts, placed.played
    useful = spec.response_tokens * spec.keep_share * (1 - played.stale_share)
    usd = sum(parts.devices.values()) * spec.usd_per_hour
    if spec.rollout_gpu is not None and not parts.kind.shared:
        usd = parts.devices["rollout"] * spec.rollout_usd_per_hour
        usd += parts.devices["train"] * spec.usd_per_hour
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
        allowed=allowed,
    )


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


def _range(spec: Spec, parts: Parts, replayed_s: float, constants: PlanConstants) -> Estimate:
    """The step with each constant at either end, on the same split."""
    generating = parts.devices.get("rollout", spec.gpus)
    down = up = 0.0
    for name in list(constants.used):
        ends = table()[name]
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
    apart = [one for one in placed.values() if not one.parts.kind.shared]
    if not apart:
        return ()
    chosen = placed[best.name]
    if chosen.parts.kind.shared:
        chosen = min(apart, key=lambda one: one.step_s)
    kind = chosen.parts.kind
    generating = splits(replace(pools.spec, split=math.nan))
    return tuple(
        SplitPoint(
            one.devices["rollout"],
            one.devices["train"],
            one.decoding_s,
            one.learner.total_s + one.rest_s,
            one.step_s,
        )
        for one in that_fit(generating, lambda count: parts_of(pools, kind, count))[0]
    )


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


# --- sweeps: a plan for each of many values of one figure of the workload

_POINTS = 12
_MOST = 1000
_FIGURES = {
    "gpus": "gpus.count",
    "prompts": "batch.prompts",
    "group": "batch.group",
    "mean_tokens": "lengths.mean_tokens",
    "cap_tokens": "lengths.cap_tokens",
    "variation": "lengths.variation",
    "lag": "staleness",
    "split": "",
    "env_latency": "environment.latency_s",
}
"""What can be swept, by its name in `--sweep`, and under which name its limits stand."""
_WHOLE = ("gpus", "prompts", "group")


@dataclass(frozen=True)
class Point:
    """A value, the best placement with it and the wall that binds then; or why there is none."""

    value: float
    row: Row | None
    wall: str
    refused: str


def asked(text: str) -> tuple[str, list[float]]:
    """`gpus=16..256` (a dozen values, evenly by their logarithm), `gpus=16..256:100` or
    `gpus=16,32,64` -> what, and its values. Errors: `RltraceError` for what makes no sense."""
    what, equals, given = text.partition("=")
    if not equals or what not in _FIGURES:
        raise WrongUsage(
            f"--sweep must be like gpus=16..256, of one of {', '.join(_FIGURES)}, not {text!r}"
        )
    limits = _FIGURES[what]
    whole = what in _WHOLE
    try:
        if ".." in given:
            ends, _, count = given.partition(":")
            low, high = (float(end) for end in ends.split(".."))
            values = _between(low, high, int(count) if count else _POINTS)
        else:
            values = [float(value) for value in given.split(",")]
        if whole:
            values = list(dict.fromkeys(float(round(value)) for value in values))
    except (ValueError, OverflowError):  # no numbers, or not finite
        values = []
    least = 1 if whole else 0
    sensible = values and all(math.isfinite(v) and v >= least for v in values)
    if not sensible or len(values) > _MOST:
        raise WrongUsage(
            f"--sweep {text!r} names no values: give {what}=LOW..HIGH, {what}=LOW..HIGH:COUNT or a "
            f"list, of at most {_MOST:,}"
        )
    for value in values:
        check_limits(limits, value, f"--sweep {what}")
    return what, values


def sweep(spec: Spec, what: str, values: list[float]) -> list[Point]:
    """The best placement of the workload for each value of a figure."""
    found = []
    for value in values:
        try:
            row, walls = quick(_changed(spec, what, value))
        except RltraceError as error:
            found.append(Point(value, None, "", str(error)))
            continue
        names = [wall.name for wall in walls.binding]
        found.append(Point(value, row, (*names, "nothing")[0], ""))
    return found


def quick(spec: Spec) -> tuple[Row, Walls]:
    """The best placement and its walls, without the rest: a point of a sweep. Replayed are those
    that are allowed and, in closed form, nearly as fast as the fastest. Errors: as `plan`."""
    pools = Pools(spec, PlanConstants())
    found, refused = that_fit(_kinds(spec), lambda kind: best_parts(pools, kind))
    if not found:
        raise refused[0]
    allowed = [parts for parts in found if parts.kind.least_lag <= spec.lag_bound] or found
    least = min(parts.step_s for parts in allowed)
    near = [parts.kind for parts in allowed if parts.step_s <= _NEAR * least]
    rows, placed = _placements(pools, near)
    best = _best(rows)
    return best, costed(placed[best.name].parts)


def _changed(spec: Spec, what: str, value: float) -> Spec:
    if what == "split" and not 0 < value < 1:
        raise RltraceError(f"a split is the part that generates, between 0 and 1, not {value:g}")
    if what == "env_latency":
        env = spec.environment
        env = replace(env, latency_s=value, calls=max(1.0, env.calls))
        return replace(spec, environment=env)
    figure: dict[str, Any] = {"lag_bound" if what == "lag" else what: value}
    if what in _WHOLE:
        figure = {what: round(value)}
    return replace(spec, **figure)


def _between(low: float, high: float, count: int) -> list[float]:
    if not (0 < low <= high and 2 <= count <= _MOST):
        return []
    step = (high / low) ** (1 / (count - 1))
    return [low * step**i for i in range(count - 1)] + [high]
