"""Recorded symbol lists of frameworks' versions, and what a reader asks of a call."""

from __future__ import annotations

import dis
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

from rltrace.testing.inside.hooks import Hook

FOLDER = Path(__file__).with_name("symbols")


@cache
def symbols(package: str, version: str) -> dict[str, dict[str, list[str]]]:
    """Module -> qualified name -> `[kind, *parameters]`, as `record_symbols` wrote them."""
    found: dict[str, dict[str, list[str]]] = json.loads(
        (FOLDER / f"{package}-{version}.json").read_text("utf-8")
    )
    return found


def versions(package: str) -> list[str]:
    """The versions that are recorded of a package, the oldest first; `main` last."""
    names = [file.stem.removeprefix(f"{package}-") for file in FOLDER.glob(f"{package}-*.json")]
    numbers = sorted(
        (n for n in names if n != "main"), key=lambda n: [int(p) for p in n.split(".")]
    )
    return [*numbers, *(["main"] if "main" in names else [])]


def found_at(hook: Hook, package: str, version: str) -> list[list[str]]:
    """The signatures of those of a hook's targets that a version has."""
    of_version = symbols(package, version)
    places = (of_version.get(module, {}).get(name) for module, name in hook.targets)
    return [place for place in places if place is not None]


def reads(function: Any) -> Iterator[str]:
    """The arguments that a reader asks a call for, by their names, also through what it calls."""
    yield from _reads(function, set())


def _reads(function: Any, seen: set[int]) -> Iterator[str]:
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    asked = False
    for step in dis.get_instructions(function):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            asked = step.argval == "argument"
        elif asked and step.opname == "LOAD_CONST":
            yield step.argval
            asked = False
        elif step.opname == "LOAD_DEREF" and step.argval in cells:
            inside = cells[step.argval].cell_contents
            if asked and isinstance(inside, str):
                if inside:  # empty: the table has no such argument
                    yield inside
                asked = False
            yield from _reads(inside, seen)
        elif step.opname == "LOAD_GLOBAL":
            named = function.__globals__.get(step.argval)
            if getattr(named, "__module__", "").startswith("rltrace.adapters"):
                yield from _reads(named, seen)
