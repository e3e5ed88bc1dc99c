"""Finds names of rltrace's insides for its own tests, wherever they stand.

    from rltrace.testing.inside.sync import blocks_digest

No promise to anybody else. A module that moves is found anew, and no test notices. Each floor is a
module: a name that several modules of it have is told apart in front (`blocks_digest` is `digest`
of `sync/blocks.py`), or stands in `choices.toml`.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from rltrace.trace.untrusted_files import packaged_toml

_ROOT = Path(__file__).parents[2]
_CHOICES = packaged_toml("testing/inside/choices.toml")


class Floor(ModuleType):
    """A floor. Errors: `AttributeError` for a name that none, or several of its modules have."""

    def __getattr__(self, name: str) -> Any:
        floor = self.__name__.rpartition(".")[2]
        if name.startswith("_"):
            raise AttributeError(name)
        chosen = _CHOICES[floor].get(name)
        found = [chosen] if chosen else _named(floor)[name]
        if len(found) != 1:
            raise AttributeError(f"{name} of rltrace.{floor} is in {found or 'no module'}")
        module, _, inner = found[0].partition(":")
        below = "" if module.startswith("rltrace.") else f"rltrace.{floor}."
        whole = import_module(f"{below}{module}".removesuffix("."))
        return getattr(whole, inner) if inner else whole


for _floor in _CHOICES:
    sys.modules[f"{__name__}.{_floor}"] = Floor(f"{__name__}.{_floor}")


@cache
def _named(floor: str) -> Mapping[str, list[str]]:
    """Definitions and modules by each way to call them; what has its module's name goes before."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted((_ROOT / floor).rglob("*.py")):
        path = file.relative_to(_ROOT / floor).with_suffix("").parts
        path = path[:-1] if path[-1] == "__init__" else path
        own = set(_defined(ast.parse(file.read_text("utf-8"))))
        for name in own:
            for first in range(len(path) + 1):
                found["_".join([*path[first:], name])].append(f"{'.'.join(path)}:{name}")
        if path and path[-1] not in own:
            for first in range(len(path)):
                found["_".join(path[first:])].append(".".join(path))
    return found


def _defined(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = (node for target in targets for node in ast.walk(target))
            yield from (node.id for node in names if isinstance(node, ast.Name))
