"""Whether a hook's target exists, told from source files: nothing of a framework is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

YES, NO, UNKNOWN = "yes", "no", "cannot tell"
_DEEPEST = 8


def package_folder(name: str) -> Path | None:
    """The folder of an installed top-level package, or the file of a module; `None`: not there."""
    spec = PathFinder.find_spec(name.partition(".")[0])
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin else None


def module_file(name: str) -> Path | None:
    """The source file of a module; `None` when there is none."""
    root = package_folder(name)
    if root is None:
        return None
    inner = name.split(".")[1:]
    if root.is_file():
        return root if not inner else None
    base = root.joinpath(*inner)
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file() and (inner or candidate.name == "__init__.py"):
            return candidate
    return None


def source_version(package: str) -> str | None:
    """The constant `__version__` of a package's source; `None` when it has none."""
    file = module_file(package.partition(".")[0])
    tree = _parse(file) if file is not None else None
    for statement in tree.body if tree is not None else ():
        value = getattr(statement, "value", None)
        if "__version__" in _assigned(statement) and isinstance(value, ast.Constant):
            return str(value.value)
    return None


def resolves(module: str, qualname: str) -> str:
    """`"yes"`, `"no"`, or `"cannot tell"` (compiled code, names made at run time)."""
    if module_file(module) is None:
        return NO
    return _look_up(module, qualname.split("."), _DEEPEST)


def _look_up(module: str, path: list[str], depth: int) -> str:
    file = module_file(module)
    if file is None or depth == 0:
        return UNKNOWN
    tree = _parse(file)
    if tree is None:
        return UNKNOWN
    return _in_body(module, list(_statements(tree.body)), path, depth)


def _in_body(module: str, body: list[ast.stmt], path: list[str], depth: int) -> str:
    name, rest = path[0], path[1:]
    for statement in reversed(body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if statement.name == name:
                return NO if rest else YES
        elif isinstance(statement, ast.ClassDef) and statement.name == name:
            if not rest:
                return YES
            return _in_class(module, statement, body, rest, depth)
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    origin = _absolute(module, statement)
                    return _look_up(origin, [alias.name, *rest], depth - 1)
        elif name in _assigned(statement):
            return UNKNOWN if rest else YES
    dynamic = any(
        isinstance(s, ast.ImportFrom) and any(alias.name == "*" for alias in s.names) for s in body
    ) or any(isinstance(s, ast.FunctionDef) and s.name == "__getattr__" for s in body)
    return UNKNOWN if dynamic else NO


def _in_class(
    module: str, cls: ast.ClassDef, around: list[ast.stmt], path: list[str], depth: int
) -> str:
    found = _in_body(module, list(_statements(cls.body)), path, depth)
    if found != NO:
        return found
    for written in cls.bases:
        base = written.value if isinstance(written, ast.Subscript) else written
        if not isinstance(base, ast.Name):
            return UNKNOWN
        if base.id in ("object", "ABC", "Protocol", "Generic") or depth == 0:
            continue
        inherited = _in_body(module, around, [base.id, *path], depth - 1)
        if inherited != NO:
            return inherited
    return NO


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            yield from _statements(statement.body)
            yield from _statements(getattr(statement, "orelse", []))
            for handler in getattr(statement, "handlers", []):
                yield from _statements(handler.body)


def _assigned(statement: ast.stmt) -> set[str]:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _absolute(module: str, statement: ast.ImportFrom) -> str:
    if not statement.level:
        return statement.module or ""
    file = module_file(module)
    is_package = file is not None and file.name == "__init__.py"
    parts = module.split(".")
    kept = len(parts) - statement.level + (1 if is_package else 0)
    return ".".join([*parts[:kept], *([statement.module] if statement.module else [])])


@lru_cache(maxsize=256)
def _parse(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
