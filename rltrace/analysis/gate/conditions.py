"""What a user states: `goodput=3%`, `lag.p99=4`, the wall; parsed and checked.

A maximal regression is a share by which the figure may get worse than the baseline's: a rate may
fall to (1 - share) of it, seconds may grow to (1 + share) of it. A minimum or maximum is a bound of
this run's own figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rltrace.analysis.gate.metrics import find_metric
from rltrace.analysis.walls.registry import wall_names
from rltrace.trace.errors import WrongUsage, did_you_mean

MAX_REGRESSION, MINIMUM, MAXIMUM = "max-regression", "min", "max"
WALL = "wall"
KINDS = (MAX_REGRESSION, MINIMUM, MAXIMUM, WALL)


@dataclass(frozen=True)
class Condition:
    """One condition. `subject` is a metric's name, or a wall's name.
    `limit` is a share for a maximal regression (0.03: 3 %), a bound in the metric's unit for a
    minimum or maximum, NaN for a wall."""

    kind: str
    subject: str
    limit: float = math.nan

    @property
    def text(self) -> str:
        """As a user would write it: `max-regression goodput=3%`, `wall rollout`."""
        if self.kind == MAX_REGRESSION:
            return f"{self.kind} {self.subject}={100 * self.limit:g}%"
        if self.kind in (MINIMUM, MAXIMUM):
            return f"{self.kind} {self.subject}={self.limit:g}"
        return f"{self.kind} {self.subject}"


def parse_condition(kind: str, text: str) -> Condition:
    """The condition of one option, e.g. `("max-regression", "goodput=3%")`, `("wall", "rollout")`.
    Errors: `RltraceError` (wrong usage) with what was expected."""
    if kind == WALL:
        return Condition(WALL, _wall(text))
    name, equals, value = text.partition("=")
    if not equals:
        example = "goodput=3%" if kind == MAX_REGRESSION else "lag.p99=4"
        raise WrongUsage(f"--{kind} takes METRIC=LIMIT, as in {example}, and not {text!r}")
    metric = find_metric(name.strip())
    return Condition(kind, metric.name, _limit(kind, metric.name, value.strip()))


def conditions_of(table: Mapping[str, Any]) -> tuple[Condition, ...]:
    """The conditions of a table of a TOML file: `max-regression`, `min` and `max` are tables of
    limits by metric, `wall` is a text. Errors: `RltraceError` (wrong usage)."""
    found = []
    for kind, value in table.items():
        if kind not in KINDS:
            raise WrongUsage(f"{kind!r} is no condition of a gate: {', '.join(KINDS)}")
        if kind == WALL:
            if not isinstance(value, str):
                raise WrongUsage(f"{kind} takes a name, and not {value!r}")
            found.append(parse_condition(kind, value))
        elif isinstance(value, Mapping):
            found += [parse_condition(kind, f"{name}={limit}") for name, limit in value.items()]
        else:
            raise WrongUsage(f"{kind} takes a table of limits by metric, and not {value!r}")
    return tuple(found)


def _limit(kind: str, name: str, text: str) -> float:
    percent = text.endswith("%")
    try:
        value = float(text.rstrip("%"))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise WrongUsage(f"{text!r} is no number to limit {name} by")
    wanted = ""
    if kind == MAX_REGRESSION and not percent:
        wanted = f"a percentage, as in {name}=3%"
    elif kind == MAX_REGRESSION and not 0 < value < 100:
        wanted = "more than 0 and less than 100 %"
    elif kind != MAX_REGRESSION and percent:
        wanted = "a number in the metric's unit"
    if wanted:
        raise WrongUsage(f"--{kind} {name} takes {wanted}, and not {text!r}")
    return value / 100 if percent else value


_OLD_WALLS = {
    "rollout decode": "rollout",
    "env/reward latency": "env/reward",
    "learner flops + memory": "training",
    "weight movement": "weight sync",
    "long-tail skew": "long tail",
    "freshness": "staleness",
    "agent observability": "token fidelity",
}
"""What walls were called before, for settings that were written then."""


def _wall(text: str) -> str:
    plain = text.strip().lower()
    names = {name.lower(): name for name in wall_names()} | _OLD_WALLS
    begun = {name for words, name in names.items() if plain and words.startswith(plain)}
    found = [names[plain]] if plain in names else [*begun]
    if len(found) != 1:
        near = did_you_mean(plain, *wall_names())
        raise WrongUsage(f"{text!r} is no wall{near}: known are {', '.join(wall_names())}")
    return found[0]
