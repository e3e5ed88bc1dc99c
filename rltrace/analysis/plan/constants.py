"""What a plan rests on beyond the shape: its own packaged constants, and those of the replay."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from rltrace.analysis.whatif.constants import Constant, Constants
from rltrace.analysis.whatif.constants import table as replay_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@cache
def packaged(name: str) -> dict[str, Any]:
    """One of the plan's data files, as its tables stand."""
    text = resources.files("rltrace.analysis.plan").joinpath(f"data/{name}.toml").read_text("utf-8")
    return tomllib.loads(text)


@cache
def table() -> dict[str, Constant]:
    """The plan's own constants by name."""
    entries = packaged("constants").items()
    return {name: Constant(name, **entry) for name, entry in entries if isinstance(entry, dict)}


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
