"""The walls that there are: each module of this folder that registers its test is one.

A wall is a module here and a file of moves of the same name (`rltrace/analysis/data/moves`).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.walls.wall import Wall
from rltrace.trace.vocabulary import Stage

Test = Callable[[RunAnalysis], Wall]


@dataclass(frozen=True)
class Registered:
    """A wall by name, with its test and the stages that it takes time of: all of it, or a `part`,
    where another wall stands for the stage. A wall of no stage takes tokens."""

    name: str
    stages: tuple[Stage, ...]
    part: bool
    test: Test


_FOUND: dict[str, Registered] = {}


def register(name: str, *stages: Stage, part: bool = False) -> Callable[[Test], Test]:
    """Makes a function the test of the wall `name`. Errors: `ValueError` where there is a wall of
    that name, or of one of these stages."""
    others = [one for one in _FOUND.values() if not one.part and not part]
    if name in _FOUND or any({*one.stages} & {*stages} for one in others):
        raise ValueError(f"there is a wall of that name or of these stages already: {name}")

    def kept(test: Test) -> Test:
        _FOUND[name] = Registered(name, stages, part, test)
        return test

    return kept


@cache
def walls() -> Mapping[str, Registered]:
    """All walls by name."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        import_module(f"{__package__}.{module.name}")
    return _FOUND


def wall_names() -> tuple[str, ...]:
    """The names of all walls, as the playbook has them."""
    return tuple(walls())


def stages_of(wall: str) -> tuple[Stage, ...]:
    return walls()[wall].stages


@cache
def wall_of() -> Mapping[Stage, str]:
    """The wall that each stage stands for; other stages stand for none."""
    return {stage: one.name for one in walls().values() if not one.part for stage in one.stages}
