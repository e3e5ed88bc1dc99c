"""What a plan rests on beyond the shape: packaged constants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from rltrace.analysis.whatif.constants import Constant, Constants, constants_in
from rltrace.analysis.whatif.constants import table as replay_table
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
