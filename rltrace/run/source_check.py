"""Whether a hook's target exists, told from source files: nothing of a framework is imported."""

from __future__ import annotations

import ast
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from rltrace.hooks.install import spec_of
from rltrace.hooks.main_code import assigned, statements

YES, NO, UNKNOWN = "yes", "no", "cannot tell"
_DEEPEST = 8


def module_file(name: str) -> Path | None:
    """The source file of a module; `None` when there is none."""
    spec = spec_of(name)
    origin = None if spec is None else spec.origin
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def source_version(package: str) -> str | None:
    """The constant `__version__` of a package's source; `None` when it has none."""
    file = module_file(package.partition(".")[0])
    tree = _parse(file) if file is not None else None
    for statement in tree.body if tree is not None else ():
        value = getattr(statement, "value", None)
        if "__version__" in assigned(statement) and isinstance(value, ast.Constant):
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
    return _in_body(module, list(statements(tree.body)), path, depth)


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
        elif name in assigned(statement):
            return UNKNOWN if rest else YES
    dynamic = any(
        isinstance(s, ast.ImportFrom) and any(alias.name == "*" for alias in s.names) for s in body
    ) or any(isinstance(s, ast.FunctionDef) and s.name == "__getattr__" for s in body)
    return UNKNOWN if dynamic else NO


def _in_class(
    module: str, cls: ast.ClassDef, around: list[ast.stmt], path: list[str], depth: int
) -> str:
    found = _in_body(module, list(statements(cls.body)), path, depth)
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
    with suppress(OSError, SyntaxError, ValueError):
        return ast.parse(file.read_bytes())
    return None
