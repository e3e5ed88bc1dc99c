"""Hooks to type for a job that was not recognised, with the names in its own main file."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from rltrace.trace.errors import RltraceError
from rltrace.trace.printable import visible
from rltrace.trace.run_dir import read_run_json

# The first name of a stage wins that says it; a step is what has the others in it.
_SAYS = {
    "step": re.compile(r"(^|_)(step|iteration|epoch)(_|$)", re.I),
    "rollout": re.compile(r"generat|rollout|sampl|decod|collect|explor|act(_|$)", re.I),
    "reward": re.compile(r"reward|scor|judg|grad(e|ing)|verif|evaluat", re.I),
    "train": re.compile(r"train|updat|learn|optim|backward|fit(_|$)", re.I),
}
_MOST_BYTES = 1_000_000


def suggested(run_path: str) -> str:
    """`rltrace wrap --hook __main__:sample=rollout -- python train.py` by what functions of the
    command's own file are called; empty where that file is not here, or none is called so."""
    try:
        told = read_run_json(run_path)
        command = [str(word) for word in told.get("command") or ()]
        script = _script(command, Path(str(told.get("cwd") or ".")))
        if script is None or script.stat().st_size > _MOST_BYTES:
            return ""
        names = list(_functions(ast.parse(script.read_bytes())))
    except (RltraceError, OSError, SyntaxError, ValueError, RecursionError):
        return ""
    hooks = []
    for stage, says in _SAYS.items():
        name = next((name for name in names if says.search(name.rpartition(".")[2])), None)
        if name is not None:
            names.remove(name)
            hooks.append(f"--hook __main__:{visible(name)}={stage}")
    if not hooks:
        return ""
    return f"rltrace wrap {' '.join(hooks)} -- {visible(shlex.join(command))}"


def _script(command: list[str], cwd: Path) -> Path | None:
    """The Python file that the command runs."""
    found = (cwd / word for word in command if word.endswith(".py"))
    return next((path for path in found if path.is_file()), None)


def _functions(tree: ast.Module) -> Iterator[str]:
    """Functions of a module, and then methods of its classes, as a hook names them."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    yield from (node.name for node in tree.body if isinstance(node, functions))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from (
                f"{node.name}.{one.name}" for one in node.body if isinstance(one, functions)
            )
