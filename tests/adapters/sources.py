"""Sources of a framework's versions, parsed and never imported: where a hook's function is.

A folder has one folder a version, as `pip install --target FOLDER/VERSION` makes it.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from rltrace.testing.inside.hooks import Adapter, Hook, satisfies, split_target

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


class Sources:
    """The versions of one framework."""

    def __init__(self, folder: str, adapter: type[Adapter], versions: Sequence[str]) -> None:
        self.folder = folder
        self.adapter = adapter
        self.versions = versions
        self.package = adapter.framework.partition(".")[0]
        self.module = lru_cache(maxsize=None)(self._module)

    def _module(self, version: str, name: str) -> ast.Module | None:
        """A module's syntax tree; None where the version does not have it."""
        path = Path(self.folder, version, *name.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.exists():
                return ast.parse(file.read_text())
        return None

    def find(self, version: str, module: str, qualname: str) -> Definition | None:
        """The definition of a target, inherited ones included."""
        tree = self.module(version, module)
        if tree is None:
            return None
        owner, _, leaf = qualname.rpartition(".")
        if not owner:
            return self._defined(version, module, tree, leaf)
        cls = self.find(version, module, owner)
        if not isinstance(cls, ast.ClassDef):
            return None
        for node in definitions(cls):
            if isinstance(node, Function) and node.name == leaf:
                return node
        bases = [base.id for base in cls.bases if isinstance(base, ast.Name)]
        found = (self.find(version, module, f"{base}.{leaf}") for base in bases)
        return next((node for node in found if node is not None), None)

    def function(self, version: str, target: str) -> Function | None:
        """The function that a target names."""
        found = self.find(version, *split_target(target))
        return found if isinstance(found, Function) else None

    def _defined(self, version: str, module: str, tree: ast.Module, name: str) -> Definition | None:
        """A name of a module, followed to where it is imported from."""
        for node in definitions(tree):
            if isinstance(node, Definition) and node.name == name:
                return node
            if isinstance(node, ast.ImportFrom):
                origin = node.module or ""
                if node.level:
                    origin = ".".join([*module.split(".")[: -node.level], origin]).rstrip(".")
                for alias in node.names:
                    if origin.split(".")[0] == self.package and name == (
                        alias.asname or alias.name
                    ):
                        return self.find(version, origin, alias.name)
        return None

    def hooks(self, version: str) -> list[Hook]:
        """The hooks that a version is said to have, of the framework itself."""
        own = [h for h in self.adapter.hooks if h.target.split(".")[0] == self.package]
        return [hook for hook in own if satisfies(version, hook.versions)]

    def place(self, version: str, hook: Hook) -> Function | None:
        """The function of a hook, where the version keeps it."""
        found = (self.function(version, t) for t in (hook.target, *hook.alternates))
        return next((function for function in found if function is not None), None)

    def missing(self, version: str) -> list[str]:
        """The targets of those that the version has nowhere."""
        return [h.target for h in self.hooks(version) if self.place(version, h) is None]

    def hidden(self, version: str) -> set[str]:
        """The targets that the version has, of hooks that it is said not to have."""
        seen = {hook.target for hook in self.hooks(version)}
        others = [hook for hook in self.adapter.hooks if hook.target not in seen]
        return {hook.target for hook in others if self.place(version, hook) is not None}

    def stages(self, version: str) -> set[str]:
        """The stages of the hooks of a version."""
        return {word for hook in self.hooks(version) for word in hook.stage_word.split(", ")}

    def unread(
        self, version: str, reads: dict[object, tuple[str, ...]]
    ) -> list[tuple[str, set[str]]]:
        """The targets that lack a parameter which one of their readers cannot do without."""
        wrong = []
        for hook in self.hooks(version):
            function = self.place(version, hook)
            names = parameters(function) if function is not None else set()
            for reader in (hook.before, hook.after, hook.stage):
                absent = set(reads.get(reader, ())) - names
                if absent:
                    wrong.append((hook.target, absent))
        return wrong

    def classes(self, module: str) -> set[str]:
        """The names of all classes that a module has in any version."""
        trees = (self.module(version, module) for version in self.versions)
        nodes = (node for tree in trees if tree is not None for node in ast.walk(tree))
        return {node.name for node in nodes if isinstance(node, ast.ClassDef)}


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


def parameters(function: Function) -> set[str]:
    """The names of a function's parameters."""
    arguments = function.args
    return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
