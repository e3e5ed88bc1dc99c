"""Sources of frameworks, parsed and not imported: where a hook's function is. Jobs may run them.

`make test-verl` and its likes unpack the wheels of a framework's versions into a folder with one
folder a version, as `pip install --target FOLDER/VERSION` makes it, and name it in the environment.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from rltrace.adapters.openrlhf import OpenRLHF
from rltrace.adapters.trl import TRL as AdapterOfTRL
from rltrace.adapters.verl import Verl
from rltrace.testing.inside.hooks import Adapter, Hook, split_target
from rltrace.testing.inside.trace import satisfies
from tests.adapters.symbols import reads

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
Place = tuple[str, Definition]
"""A definition, and the module that it is in."""


class Tree:
    """The source tree of one version."""

    def __init__(self, folder: Path) -> None:
        self.folders = [folder / "src", folder]
        self.packages: set[str] = set()
        self.module = cache(self._module)

    def _module(self, name: str) -> ast.Module | None:
        """A module's syntax tree; None where there is no such."""
        for folder in self.folders:
            path = folder.joinpath(*name.split("."))
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.exists():
                    self.packages |= {name} if file.stem == "__init__" else set()
                    return ast.parse(file.read_text("utf-8"))
        return None

    def named(self, module: str, name: str) -> tuple[str, Any] | None:
        """What a module's name stands for, and the module that it is in, wherever it is imported
        from: a definition, or else the value that it is set to."""
        tree, value = self.module(module), None
        for node in definitions(tree) if tree is not None else ():
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    if node.name == name:
                        return module, node
                case ast.ImportFrom():
                    for alias in node.names:
                        if name == (alias.asname or alias.name):
                            return self.named(self._origin(module, node), alias.name)
                case (
                    ast.Assign(targets=[ast.Name(id=left)])
                    | ast.AnnAssign(target=ast.Name(id=left))
                ) if left == name:
                    value = node.value
        return None if value is None else (module, value)

    def _origin(self, module: str, node: ast.ImportFrom) -> str:
        """The module that names are imported from."""
        parts = module.split(".")
        up = node.level - (module in self.packages)
        package = parts[: len(parts) - up] if node.level else []
        return ".".join([*package, *([node.module] if node.module else [])])

    def find(self, module: str, qualname: str) -> Place | None:
        """The definition of a target, wherever it is inherited or imported from."""
        owner, _, leaf = qualname.rpartition(".")
        if not owner:
            match self.named(module, leaf):
                case home, ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() as node:
                    return home, node
                case home, ast.Attribute(value=ast.Name(id=instance), attr=method):
                    match self.named(home, instance):
                        case place, ast.Call(func=ast.Name(id=cls)):
                            return self.find(place, f"{cls}.{method}")
            return None
        place = self.find(module, owner)
        if place is None or not isinstance(place[1], ast.ClassDef):
            return None
        home, cls = place
        for node in definitions(cls):
            if isinstance(node, Function) and node.name == leaf:
                return home, node
        bases = [base.id for base in cls.bases if isinstance(base, ast.Name)]
        found = (self.find(home, f"{base}.{leaf}") for base in bases if base != cls.name)
        return next((place for place in found if place is not None), None)

    def function(self, target: str) -> Function | None:
        """The function that a target names."""
        place = self.find(*split_target(target))
        return place[1] if place is not None and isinstance(place[1], Function) else None


def definitions(tree: ast.Module | ast.ClassDef) -> list[ast.stmt]:
    """What is defined at the top of a module or class, below conditions too."""
    found: list[ast.stmt] = []
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop(0)
        found.append(node)
        if isinstance(node, ast.If | ast.Try):
            pending += node.body + node.orelse
    return found


def parameters(function: Function) -> list[str]:
    """The names of a function's parameters."""
    arguments = function.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


class Sources:
    """The versions of one framework."""

    def __init__(self, adapter: type[Adapter], *versions: str) -> None:
        self.adapter = adapter
        self.known = versions
        self.package = adapter.framework
        self.folder = os.environ.get(f"RLTRACE_{self.package.upper()}_SOURCES", "")
        newer = sorted(os.listdir(self.folder)) if self.folder else []  # tests/frameworks_latest.py
        self.versions = versions = tuple(dict.fromkeys([*versions, *newer]))
        self.trees = {version: Tree(Path(self.folder, version)) for version in versions}
        self.needed = pytest.mark.elsewhere(not self.folder)
        here = [pytest.param(version, marks=self.needed) for version in versions]
        self.each_version = pytest.mark.parametrize("version", here)

    def instead(self, version: str) -> dict[str, str]:
        """The environment of a job that runs a version in place of the one that is installed, where
        it names one."""
        if not version:
            return {}
        assert self.folder, f"RLTRACE_{self.package.upper()}_SOURCES names no folder"
        return {"PYTHONPATH": str(Path(self.folder, version))}

    def text(self, version: str, target: str) -> str:
        """The source of a function, or of a class."""
        place = self.trees[version].find(*split_target(target))
        assert place is not None, target
        return ast.unparse(place[1])

    def hooks(self, version: str) -> list[Hook]:
        """The hooks that a version is said to have, of the framework itself."""
        own = [h for h in self.adapter.hooks if h.target.split(".")[0] == self.package]
        return [hook for hook in own if satisfies(version, hook.versions)]

    def place(self, version: str, hook: Hook) -> Function | None:
        """The function of a hook, where the version keeps it."""
        found = (self.trees[version].function(t) for t in (hook.target, *hook.alternates))
        return next((function for function in found if function is not None), None)

    def check(
        self,
        version: str,
        superseded: Sequence[str] = (),
        may_lack: Mapping[str, set[str]] | None = None,
        one_of: Mapping[str, set[str]] | None = None,
    ) -> None:
        """Every hook of a version has its function, with the arguments that its readers ask for,
        but those that a reader `may_lack` or has `one_of`. A range is not too narrow: outside of it
        there is no such function, or another one is hooked in its place (`superseded`). Roles are
        of classes of some version."""
        for hook in self.hooks(version):
            function = self.place(version, hook)
            assert function is not None or hook.optional, f"{version} has no {hook.target}"
            names = set(parameters(function)) if function is not None else set()
            for reader in (hook.before, hook.after, hook.stage) if function is not None else ():
                name = _name(reader)
                either = (one_of or {}).get(name, set())
                asked = set(reads(reader)) - (may_lack or {}).get(name, set())
                lacks = asked - names - (either if either & names else set())
                assert not lacks, f"{version}: {name} asks {hook.target} for {lacks}"
        seen = {hook.target for hook in self.hooks(version)}
        others = [hook for hook in self.adapter.hooks if hook.target not in seen]
        hidden = {hook.target for hook in others if self.place(version, hook) is not None}
        assert hidden <= {*superseded}
        for module, name in map(split_target, self.adapter.roles):
            modules = [tree.module(module) or ast.Pass() for tree in self.trees.values()]
            nodes = [node for each in modules for node in ast.walk(each)]
            assert any(isinstance(node, ast.ClassDef) and node.name == name for node in nodes), name

    def check_what_is_beside(self) -> None:
        """What is hooked beside the framework is there, in what is installed."""
        others = [h for h in self.adapter.hooks if h.target.split(".")[0] != self.package]
        assert others
        for module, qualname in (hook.targets[0] for hook in others if not hook.optional):
            assert callable(attrgetter(qualname)(import_module(module))), qualname


def _name(reader: Any) -> str:
    """A reader with its module, as `rollout.begins`."""
    module = getattr(reader, "__module__", "").rpartition(".")[2]
    return f"{module}.{getattr(reader, '__name__', '')}"


VERL = Sources(Verl, "0.6.1", "0.7.1", "0.8.0", "0.9.1")
OPENRLHF = Sources(OpenRLHF, "0.9.1", "0.9.6", "0.9.9", "0.10.1", "0.10.2", "0.10.4", "0.11.2")
TRL = Sources(AdapterOfTRL, "0.28.0", "1.0.0", "1.6.0", "1.9.0", "1.16.0")
