"""What a plan rests on beyond the shape: its own packaged constants, and those of the replay."""

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
    """The plan's own constants by name."""
    return constants_in(packaged("constants"))


@dataclass
class PlanConstants(Constants):
    """The middle of each constant, but for those in `moved`; `used` are those that were read. What
    the plan does not know itself is the replay's."""

    def __getitem__(self, name: str) -> float:
        self.used[name] = None
        return self.moved.get(name, constant(name).middle)

    def sentences(self) -> tuple[str, ...]:
        """The constants that were used, with their ranges."""
        return tuple(constant(name).sentence() for name in self.used)


def constant(name: str) -> Constant:
    """A constant of the plan, or else of the replay."""
    own = table()
    return own[name] if name in own else replay_table()[name]
