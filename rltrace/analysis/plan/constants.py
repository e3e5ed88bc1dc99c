"""What a plan rests on beyond the shape: packaged constants, and limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from rltrace.analysis.whatif.constants import Constant, Constants, constants_in
from rltrace.analysis.whatif.constants import table as replay_table
from rltrace.trace.errors import WrongUsage
from rltrace.trace.texts import packaged_toml


def packaged(name: str) -> dict[str, Any]:
    """One of the plan's data files, as its tables stand."""
    return packaged_toml(f"analysis/plan/data/{name}.toml")


@cache
def table() -> dict[str, Constant]:
    """Constants by name: those of the replay, and over them the plan's own."""
    return {**replay_table(), **constants_in(packaged("constants"))}


@dataclass
class PlanConstants(Constants):
    """The middle of each constant, but for those in `moved`; `used` are those that were read."""

    def __getitem__(self, name: str) -> float:
        self.used[name] = None
        return self.moved.get(name, table()[name].middle)

    def sentences(self) -> tuple[str, ...]:
        """The constants that were used, with their ranges."""
        return tuple(table()[name].sentence() for name in self.used)


def check_limits(figure: str, value: float, called: str = "", where: str = "") -> None:
    """Whether `figure` ("lengths.mean_tokens") may be that; one without limits may be anything.
    `called` is what its user knows it by. Errors: `RltraceError`, one sentence, where it may
    not."""
    table, _, key = figure.rpartition(".")
    tables = packaged("limits")
    limits = (tables.get(table, {}) if table else tables).get(key)
    if limits is None or limits[0] <= value <= limits[1]:
        return
    raise WrongUsage(
        f"{where and f'{where}: '}{called or figure} must be from {limits[0]:,} to {limits[1]:,}, "
        f"and is {value:.12g}"
    )
