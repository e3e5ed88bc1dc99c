"""The best placement of a workload, what it is made of, sweeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from rltrace.analysis.plan import placement_breakdown, placements
from rltrace.analysis.plan.data_sheets import counted
from rltrace.analysis.plan.planned_workload import Spec
from rltrace.analysis.plan.workload_input import is_whole, merged
from rltrace.analysis.stats.confidence_interval import Estimate
from rltrace.analysis.whatif.stated_workload import Tables
from rltrace.analysis.whatif.workload import PLACEMENTS, PlanConstants, packaged, plan_table
from rltrace.trace.errors import ANSWER_IS_NO, RltraceError, WrongUsage

WORTH = 1.1  # a placement that is less simple has to be this much faster to be preferred


@dataclass(frozen=True)
class PlanRow:
    """A placement: `step_s` as replayed, useful tokens for each GPU-second and each dollar (NaN:
    no price), lags in policy versions. `allowed`: the staleness that was asked for admits it.
    `refused` says why it cannot be (then there are no figures)."""

    name: str
    devices: dict[str, int] = field(default_factory=dict)
    step_s: float = math.nan
    useful_tokens_per_device_s: float = math.nan
    useful_tokens_per_usd: float = math.nan
    learner_waits_share: float = math.nan
    mean_lag: float = math.nan
    lag_shares: dict[int, float] = field(default_factory=dict)
    allowed: bool = True
    refused: str = ""


@dataclass(frozen=True)
class Plan:
    """`best` is recommended, `step_s` its step: each constant at its ends, alone, in quadrature."""

    spec: Spec
    stages: tuple[placement_breakdown.StageCost, ...]
    memory: tuple[placement_breakdown.MemoryUse, ...]
    rows: tuple[PlanRow, ...]
    best: PlanRow
    placed: placements.PlacementPlan
    step_s: Estimate
    walls: tuple[placement_breakdown.CostedWall, ...]
    rests_on: tuple[str, ...]

    @property
    def parts(self) -> placements.PlacementCosts:
        return self.placed.parts

    @property
    def binding(self) -> tuple[str, ...]:
        return placement_breakdown.binding(self.walls)


def plan(spec: Spec) -> Plan:
    """Errors: `RltraceError` where no placement of the workload fits on its GPUs."""
    constants = PlanConstants()
    rows, best, placed = _placements(spec, constants)
    parts = placed.parts
    return Plan(
        spec,
        placement_breakdown.stage_costs(spec, parts, constants),
        placement_breakdown.memory_use(spec, parts, constants),
        rows,
        best,
        placed,
        _range(spec, parts, placed.step_s, constants),
        placement_breakdown.costed(placed.load),
        tuple(plan_table()[name].sentence() for name in constants.used),  # by now all of them
    )


def _placements(
    spec: Spec, constants: PlanConstants
) -> tuple[tuple[PlanRow, ...], PlanRow, placements.PlacementPlan]:
    """All placements, and the simplest of those allowed that comes near to the fastest of them."""
    pools = placements.Pools(spec, constants)
    rows: list[PlanRow] = []
    placed: dict[str, placements.PlacementPlan] = {}
    for name in PLACEMENTS:  # the simplest first
        fits = not spec.split > 0 or name != "colocated"  # a split is one of pools of their own
        allowed = fits and placements.least_lag(name) <= spec.lag_bound
        try:
            placed[name] = placements.place(pools, name)
            rows.append(_row(spec, placed[name], allowed))
        except RltraceError as error:
            rows.append(PlanRow(name, allowed=allowed, refused=str(error)))
    if not placed:
        raise RltraceError(rows[0].refused, ANSWER_IS_NO)
    possible = [row for row in rows if not row.refused]
    candidates = [row for row in possible if row.allowed] or possible
    most = max(row.useful_tokens_per_device_s for row in candidates)
    best = next(row for row in candidates if WORTH * row.useful_tokens_per_device_s >= most)
    return tuple(rows), best, placed[best.name]


def _row(spec: Spec, placed: placements.PlacementPlan, allowed: bool) -> PlanRow:
    played, tokens = placed.played, spec.response_tokens
    rate = tokens * (1 - played.stale_share) / (played.step_s * spec.gpus)
    return PlanRow(
        placed.parts.placement, placed.parts.devices, played.step_s,
        useful_tokens_per_device_s=rate, useful_tokens_per_usd=rate * 3600 / spec.usd_per_hour,
        learner_waits_share=played.learner_waits_s / played.step_s,
        mean_lag=played.mean_lag, lag_shares=dict(played.lags), allowed=allowed,
    )  # fmt: skip


def _range(
    spec: Spec, parts: placements.PlacementCosts, replayed_s: float, constants: PlanConstants
) -> Estimate:
    """The step with each constant at either end, on the same split."""
    generating = parts.devices.get("rollout", spec.gpus)
    down = up = 0.0
    for name in list(constants.used):
        ends = plan_table()[name]
        for end in (ends.low, ends.high):
            other = placements.Pools(spec, PlanConstants({name: end}))
            try:
                seconds = placements.parts_of(other, parts.placement, generating).step_s
            except RltraceError:
                continue
            by = math.log(seconds / parts.step_s)
            down, up = down + min(0.0, by) ** 2, up + max(0.0, by) ** 2
    low, high = math.exp(-math.sqrt(down)), math.exp(math.sqrt(up))
    return Estimate(replayed_s * low, replayed_s, replayed_s * high)


@dataclass(frozen=True)
class Point:
    """A value, the best placement with it and the wall that binds then; or why there is none."""

    value: float
    row: PlanRow | None
    wall: str
    refused: str


def asked(text: str, tables: Tables) -> tuple[str, list[float]]:
    """`gpus=16..256` (a dozen, by logarithm or from 0; GPUs as nodes have them), `gpus=16,32` ->
    what, its values."""
    what, _, given = text.partition("=")
    values: list[float] = []
    with suppress(ValueError):  # no numbers
        if ".." in given:
            low, high = map(float, given.split(".."))
            if 0 <= low < high < math.inf:
                values = (np.geomspace if low else np.linspace)(low, high, 12).tolist()
                if what == "gpus":
                    node = counted(str(tables.get("gpus", {}).get("kind", "")))[1].node
                    in_nodes = (_in_nodes(value, node) for value in values)
                    values = [one for one in in_nodes if low <= one <= high] or values
        else:
            values = [float(value) for value in given.split(",")]
    known = packaged("inputs")["sweep"]
    if what not in known or not values or not all(map(math.isfinite, values)):
        like = f"gpus=16..256 or gpus=16,32,64, of one of {', '.join(known)}"
        raise WrongUsage(f"--sweep must be like {like}, not {text!r}")
    if what in ("gpus", "lag") or is_whole(*known[what]):
        values = list(dict.fromkeys(float(round(value)) for value in values))
    return what, values


def _in_nodes(gpus: float, node: int) -> float:
    """The nearest number of GPUs that is rented: whole nodes, or a power of two below one."""
    return node * round(gpus / node) if gpus >= node else 2.0 ** round(math.log2(max(1.0, gpus)))


def sweep(
    tables: Tables, what: str, values: Iterable[float], spec_of: Callable[[Tables], Spec]
) -> list[Point]:
    """The best placement for each value of a figure. Errors: `RltraceError`."""
    table, key = packaged("inputs")["sweep"][what]
    found = []
    for value in values:
        changed: object = value
        if what == "gpus":
            changed = f"{value:.0f}x{counted(str(tables['gpus']['kind']))[1].name}"
        spec = spec_of(merged(tables, {table: {key: changed}}))
        try:
            _, row, placed = _placements(spec, PlanConstants())
        except RltraceError as error:
            found.append(Point(value, None, "", str(error)))
            continue
        binding = placement_breakdown.binding(placement_breakdown.costed(placed.load))
        found.append(Point(value, row, (*binding, "nothing")[0], ""))
    return found
