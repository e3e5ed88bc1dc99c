"""Records which functions a version of a framework has, for a table to be held to without it.

    python -m tests.adapters.record_symbols ADAPTER VERSION FOLDER [PACKAGE]

`ADAPTER` is `module:Class`, `FOLDER` a source tree with the package in it (parsed, never imported),
or in its `src`. Of the functions that the adapter's hooks name those that are there are recorded:
names and signatures, no code. Writes `symbols/<package>-<version>.json`: module -> qualified name
-> `[kind, *parameters]`.
"""

from __future__ import annotations

import ast
import json
import sys
from importlib import import_module
from pathlib import Path

from rltrace.testing.inside.hooks import Adapter
from tests.adapters.sources import Function, Tree, parameters

FOLDER = Path(__file__).with_name("symbols")


def _kind(node: Function) -> str:
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if any(decorator.endswith("contextmanager") for decorator in decorators):
        return "context manager"
    if isinstance(node, ast.AsyncFunctionDef):
        return "coroutine function"
    return "function"


def record(adapter: type[Adapter], tree: Tree, package: str) -> dict[str, dict[str, list[str]]]:
    """What a version has of the functions in a package that an adapter's hooks name."""
    found: dict[str, dict[str, list[str]]] = {}
    for module, qualname in sorted({target for hook in adapter.hooks for target in hook.targets}):
        node = tree.function(f"{module}:{qualname}")
        if module.split(".")[0] == package and node is not None:
            found.setdefault(module, {})[qualname] = [_kind(node), *parameters(node)]
    return found


def main() -> None:
    """Records what the command line names."""
    target, version, folder, *rest = sys.argv[1:]
    module, _, name = target.partition(":")
    adapter: type[Adapter] = getattr(import_module(module), name)
    package = rest[0] if rest else adapter.framework
    rows = [
        f'"{module}": {{\n'
        + ",\n".join(f'  "{name}": {json.dumps(parts)}' for name, parts in symbols.items())
        + "\n}"
        for module, symbols in record(adapter, Tree(Path(folder)), package).items()
    ]
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{package}-{version}.json"
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
