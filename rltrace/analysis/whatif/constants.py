"""What predictions rest on beyond the workload: packaged constants, each with range and source.

`Constants` hands out values and keeps which were asked for, so that a prediction moves exactly
those over their range and names them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rltrace.trace.texts import packaged_toml


@dataclass(frozen=True)
class Constant:
    """A constant; `meaning` says its unit, `source` where it is from."""

    name: str
    low: float
    middle: float
    high: float
    meaning: str
    source: str

    def sentence(self) -> str:
        """The constant as people read it."""
        return f"{self.name} = {self.middle:g} ({self.low:g} to {self.high:g}): {self.meaning}"


def constants_in(tables: dict[str, Any]) -> dict[str, Constant]:
    """The constants that the tables of a file are, by name."""
    return {name: Constant(name, **one) for name, one in tables.items() if isinstance(one, dict)}


@cache
def table() -> dict[str, Constant]:
    """All packaged constants by name."""
    return constants_in(packaged_toml("analysis/data/whatif.toml"))


@dataclass
class Constants:
    """The middle of each constant, but for those in `moved`; `used` are those that were read."""

    moved: dict[str, float] = field(default_factory=dict)
    used: dict[str, None] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        self.used[name] = None
        return self.moved.get(name, table()[name].middle)
