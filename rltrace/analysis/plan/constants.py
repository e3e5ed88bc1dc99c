"""What a plan rests on beyond the shape: packaged constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from rltrace.analysis.whatif.constants import Constant, Constants, constants_in
from rltrace.analysis.whatif.constants import table as replay_table
from rltrace.trace.texts import packaged_toml


def packaged(name: str) -> dict[str, Any]:
    """One of the plan's data files, as its tables stand."""
    return packaged_toml(f"analysis/plan/data/{name}.toml")


def named(entries: list[dict[str, Any]], key: Callable[[str], str]) -> dict[str, dict[str, Any]]:
    """The entries of a data file by the keys of their name and of their other ones."""
    return {
        key(name): {what: value for what, value in entry.items() if what != "also"}
        for entry in entries
        for name in (entry["name"], *entry.get("also", ()))
    }


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
