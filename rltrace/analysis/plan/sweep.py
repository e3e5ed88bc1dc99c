"""A plan for each of many values of one figure of the workload."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rltrace.analysis.plan.hardware import check_limits
from rltrace.analysis.plan.lengths import lengths
from rltrace.analysis.plan.plan import Row, quick
from rltrace.analysis.plan.spec import Spec
from rltrace.trace.errors import RltraceError, WrongUsage

_POINTS = 12
_MOST = 1000


@dataclass(frozen=True)
class Point:
    """A value, the best placement with it and the wall that binds then; or why there is none."""

    value: float
    row: Row | None
    wall: str
    refused: str


def _whole(what: str) -> Callable[[Spec, float], Spec]:
    def changed(spec: Spec, value: float) -> Spec:
        figure: dict[str, Any] = {what: round(value)}
        return replace(spec, **figure)

    return changed


def _real(what: str) -> Callable[[Spec, float], Spec]:
    def changed(spec: Spec, value: float) -> Spec:
        figure: dict[str, Any] = {what: value}
        return replace(spec, **figure)

    return changed


def _split(spec: Spec, value: float) -> Spec:
    if not 0 < value < 1:
        raise RltraceError(f"a split is the part that generates, between 0 and 1, not {value:g}")
    return replace(spec, split=value)


def _env_latency(spec: Spec, value: float) -> Spec:
    env = spec.environment
    return replace(spec, environment=replace(env, latency_s=value, calls=max(1.0, env.calls)))


@dataclass(frozen=True)
class Figure:
    """What can be swept: whether it is a whole number, under which name its limits stand, and how
    a workload gets it."""

    whole: bool
    limits: str
    change: Callable[[Spec, float], Spec]


FIGURES: dict[str, Figure] = {
    "gpus": Figure(True, "gpus.count", _whole("gpus")),
    "prompts": Figure(True, "batch.prompts", _whole("prompts")),
    "group": Figure(True, "batch.group", _whole("group")),
    "mean_tokens": Figure(False, "lengths.mean_tokens", _real("mean_tokens")),
    "cap_tokens": Figure(False, "lengths.cap_tokens", _real("cap_tokens")),
    "variation": Figure(False, "lengths.variation", _real("variation")),
    "lag": Figure(False, "staleness", _real("lag_bound")),
    "split": Figure(False, "", _split),
    "env_latency": Figure(False, "environment.latency_s", _env_latency),
}
"""By the name that it has in `--sweep`."""


def asked(text: str) -> tuple[str, list[float]]:
    """`gpus=16..256` (a dozen values, evenly by their logarithm), `gpus=16..256:100` or
    `gpus=16,32,64` -> what, and its values. Errors: `RltraceError` for what makes no sense."""
    what, equals, given = text.partition("=")
    if not equals or what not in FIGURES:
        raise WrongUsage(
            f"--sweep must be like gpus=16..256, of one of {', '.join(FIGURES)}, not {text!r}"
        )
    whole = FIGURES[what].whole
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
        check_limits(FIGURES[what].limits, value, f"--sweep {what}")
    return what, values


def sweep(spec: Spec, what: str, values: list[float]) -> list[Point]:
    """The best placement of the workload for each value of a figure."""
    change = FIGURES[what].change
    found = []
    for value in values:
        try:
            changed = change(spec, value)
            lengths(changed.mean_tokens, changed.cap_tokens, 1.0, 1.0)  # refuses a cap below
            row, walls = quick(changed)
        except RltraceError as error:
            found.append(Point(value, None, "", str(error)))
            continue
        binding = walls.binding
        found.append(Point(value, row, binding[0].name if binding else "nothing", ""))
    return found


def _between(low: float, high: float, count: int) -> list[float]:
    if not (0 < low <= high and 2 <= count <= _MOST):
        return []
    step = (high / low) ** (1 / (count - 1))
    return [low * step**i for i in range(count - 1)] + [high]
