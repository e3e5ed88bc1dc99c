"""Records which functions a version of a framework has, for a table to be held to without it.

    python -m tests.adapters.record_symbols ADAPTER VERSION FOLDER [PACKAGE]

`ADAPTER` is `module:Class`, `FOLDER` a source tree with the package in it (parsed, never imported),
or in its `src`. Of the modules that the adapter's hooks name, the classes that they name (or else
the functions) are recorded, inherited methods included: names and signatures, no code. Writes
`symbols/<package>-<version>.json`: module -> qualified name -> `[kind, *parameters]`.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from rltrace.testing.inside.hooks import Adapter
from tests.adapters.sources import Function, definitions

FOLDER = Path(__file__).with_name("symbols")
Symbols = dict[str, dict[str, list[str]]]


class Tree:
    """The source tree of one version."""

    def __init__(self, folder: Path) -> None:
        self.folders = [folder / "src", folder]

    def module(self, name: str) -> ast.Module | None:
        """A module's syntax tree; None where there is no such."""
        for folder in self.folders:
            path = folder.joinpath(*name.split("."))
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.exists():
                    return ast.parse(file.read_text("utf-8"))
        return None

    def symbols(self, name: str) -> dict[str, list[str]]:
        """The functions of a module and the methods of its classes, inherited ones included."""
        tree = self.module(name)
        if tree is None:
            return {}
        found: dict[str, list[str]] = {}
        instances: dict[str, str] = {}
        for node in definitions(tree):
            if isinstance(node, Function):
                found[node.name] = _signature(node)
            elif isinstance(node, ast.ClassDef):
                for method, signature in self.methods(name, tree, node):
                    found.setdefault(f"{node.name}.{method}", signature)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                alias = _bound_method(node, instances)
                if alias in found:
                    found[node.targets[0].id] = found[alias]
        return dict(sorted(found.items()))

    def methods(
        self, module: str, tree: ast.Module, cls: ast.ClassDef, depth: int = 0
    ) -> Iterator[tuple[str, list[str]]]:
        """A class's methods, then those of its bases, as far as the tree has them."""
        for node in definitions(cls):
            if isinstance(node, Function):
                yield node.name, _signature(node)
        for base in cls.bases:
            place = self.place(module, tree, base.id) if isinstance(base, ast.Name) else None
            if place is not None and depth < 4:
                yield from self.methods(*place, depth + 1)

    def place(
        self, module: str, tree: ast.Module, name: str
    ) -> tuple[str, ast.Module, ast.ClassDef] | None:
        """The class that a name of a module is, wherever it is imported from."""
        for node in definitions(tree):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return module, tree, node
            if isinstance(node, ast.ImportFrom) and name in [
                a.asname or a.name for a in node.names
            ]:
                origin = node.module or ""
                if node.level:
                    parts = module.split(".")[: -node.level]
                    origin = ".".join([*parts, origin]).rstrip(".")
                other = self.module(origin)
                return None if other is None else self.place(origin, other, name)
        return None


def _bound_method(node: ast.Assign, instances: dict[str, str]) -> str:
    """`Class.method` where a module names a method of an instance that it has made; notes what it
    makes."""
    target, value = node.targets[0], node.value
    assert isinstance(target, ast.Name)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        instances[target.id] = value.func.id
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        return f"{instances.get(value.value.id, '')}.{value.attr}"
    return ""


def _signature(node: Function) -> list[str]:
    arguments = node.args
    names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [_kind(node), *(argument.arg for argument in names)]


def _kind(node: Function) -> str:
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if any(decorator.endswith("contextmanager") for decorator in decorators):
        return "context manager"
    if isinstance(node, ast.AsyncFunctionDef):
        return "coroutine function"
    return "function"


def record(adapter: type[Adapter], tree: Tree, package: str) -> Symbols:
    """What a version has of the modules in a package that an adapter's hooks name."""
    owners: dict[str, set[str]] = {}
    for hook in adapter.hooks:
        for module, qualname in hook.targets:
            if module.split(".")[0] == package:
                owners.setdefault(module, set()).add(qualname.rpartition(".")[0])
    found = {}
    for module in sorted(owners):
        names = tree.symbols(module).items()
        symbols = {
            name: parts for name, parts in names if name.rpartition(".")[0] in owners[module]
        }
        if symbols:
            found[module] = symbols
    return found


def main() -> None:
    """Records what the command line names."""
    target, version, folder, *rest = sys.argv[1:]
    module, _, name = target.partition(":")
    adapter: type[Adapter] = getattr(import_module(module), name)
    package = rest[0] if rest else adapter.framework
    FOLDER.mkdir(exist_ok=True)
    rows = [
        f'"{module}": {{\n'
        + ",\n".join(f'  "{name}": {json.dumps(parts)}' for name, parts in symbols.items())
        + "\n}"
        for module, symbols in record(adapter, Tree(Path(folder)), package).items()
    ]
    path = FOLDER / f"{package}-{version}.json"
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
