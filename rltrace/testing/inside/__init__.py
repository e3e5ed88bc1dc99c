"""Names of rltrace's insides, wherever their modules stand: what its own tests import.

No promise to anybody else. A module that moves is found anew, and no test notices. One module a
floor: a name that several modules of it have is told apart in front (`blocks_digest` is `digest` of
`sync/blocks.py`), or stands among the floor's own `choices`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


def finder(floor: str, choices: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """The `__getattr__` of a floor's module. `choices` are `module:name`, or a module, below the
    floor's folder. Errors: `AttributeError` for a name that is nowhere, or in several modules."""

    def find(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        chosen = (choices or {}).get(name)
        found = [chosen] if chosen else _named(floor)[name]
        if len(found) != 1:
            raise AttributeError(f"{name} of rltrace.{floor} is in {found or 'no module'}")
        module, _, inner = found[0].partition(":")
        whole = import_module(f"rltrace.{floor}.{module}".removesuffix("."))
        return getattr(whole, inner) if inner else whole

    return find


@cache
def _named(floor: str) -> Mapping[str, list[str]]:
    """The definitions and modules of a floor by each way to call them. What a module defines under
    its own name goes before the module."""
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
