"""Hooks code that runs as `__main__`, which no import brings.

Its source is compiled here with an outermost decorator on each hooked definition; everything else,
line numbers included, stays as it was. Code that defines nothing hooked is left to Python alone.
`runpy`, which runs modules, folders and zip files, asks their loader, for which the finder answers.
Before it opens a script, CPython asks the path hooks whether the path is an importer's (that is how
it runs zip files) and if so lets `runpy` run it. The claim below answers for this one script, once,
and then makes `__main__` look as if no importer had been involved.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any

from rltrace.hooks import boot
from rltrace.hooks.hook import Hook
from rltrace.hooks.launch_info import Program
from rltrace.hooks.recorder import hook_failed
from rltrace.trace.job_exceptions import contained
from rltrace.trace.safe_text import LAUNCHERS

if TYPE_CHECKING:
    from rltrace.hooks.import_finder import ImportFinder
    from rltrace.hooks.patch.install import Installation

_Definition = (ast.FunctionDef, ast.AsyncFunctionDef)
_decorators = 0


def watch_main(finder: ImportFinder, running: Program, modules: Iterable[str]) -> None:
    """Gets ready for the main program, if one of the hooked `modules` is what it may run as."""
    if running.kind == "module":
        for name in (running.name, running.name + ".__main__"):
            if "__main__" in modules or name in modules:
                finder.run_as_main(name, _compile_module)
    if "__main__" in modules:
        if running.kind == "script" and _looks_like_source(running.name):
            _claim_script(running.name)
        elif running.kind == "script":
            finder.run_as_main("__main__", _compile_module)
        finder.after("runpy", _patch_runpy)


def _compile_module(loader: Any, fullname: str) -> CodeType | None:
    path = loader.get_filename(fullname)
    code, _ = _compiled(loader.get_data(path), path, {"__main__", fullname})
    return code


def _compile_script(path: str) -> CodeType | None:
    if path.endswith(boot.RAY_WORKER):  # a child that an actor spawned runs its parent's script
        return None
    with open(path, "rb") as file:
        source = file.read()
    code, wanted = _compiled(source, path, {"__main__"})
    launches = os.path.basename(path) in LAUNCHERS  # what it lacks is in the script that it runs
    for name, hook in () if launches else wanted:
        known = (found[1].decode() for found in re.finditer(rb"\bdef (\w+)", source))
        boot.installation().missing(hook, f"{name} in {os.path.basename(path)}", known)
    return code


def _compiled(
    source: bytes, path: str, modules: set[str]
) -> tuple[CodeType | None, list[tuple[str, Hook]]]:
    """The code of a source file with the hooked definitions decorated, `None` when it has none, or
    is no valid Python; and what hooks look for in it, by qualified name."""
    installation = boot.installation()
    hooks = installation.main_hooks()
    wanted = [(name, hook) for hook in hooks for module, name in hook.targets if module in modules]
    decorated: list[Hook] = []
    with contained(SyntaxError, ValueError):  # Python itself will say so
        tree = ast.parse(source, path)
        decorated = [hook for name, hook in wanted if _decorate(tree, name, hook, installation)]
        for name, hook in wanted:
            body, leaf = _body_of(tree, name)
            if hook not in decorated and any(leaf in assigned(s) for s in statements(body)):
                installation.refused(hook, "is assigned, not defined: name the function behind it")
    if not decorated:
        return None, wanted
    installation.found(decorated)
    return compile(tree, path, "exec", dont_inherit=True), wanted


def _decorate(tree: ast.Module, qualname: str, hook: Hook, installation: Installation) -> bool:
    global _decorators
    body, leaf = _body_of(tree, qualname)
    found = [s for s in statements(body) if isinstance(s, _Definition) and s.name == leaf]
    for definition in found:
        first = definition.decorator_list[0] if definition.decorator_list else definition
        _decorators += 1
        word = f"__rltrace_{_decorators}__"
        setattr(builtins, word, lambda function: installation.decorate(function, hook))
        name = ast.Name(word, ast.Load())
        name.lineno = name.end_lineno = first.lineno
        name.col_offset = name.end_col_offset = definition.col_offset
        definition.decorator_list.insert(0, name)
    return bool(found)


def assigned(statement: ast.stmt) -> set[str]:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _body_of(tree: ast.Module, qualname: str) -> tuple[Sequence[ast.stmt], str]:
    """The statements among which a definition stands, and its name there."""
    body: Sequence[ast.stmt] = tree.body
    *path, leaf = qualname.split(".")
    for part in path:
        classes = [s for s in statements(body) if isinstance(s, ast.ClassDef) and s.name == part]
        body = [statement for found in classes for statement in found.body]
    return body, leaf


def statements(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """The statements of a block, those under its `if`, `try`, `with` and loops included."""
    for statement in body:
        yield statement
        if not isinstance(statement, (*_Definition, ast.ClassDef)):
            inner = [*ast.iter_child_nodes(statement)]
            for handler in getattr(statement, "handlers", ()):
                inner.extend(handler.body)
            yield from statements(node for node in inner if isinstance(node, ast.stmt))


def _claim_script(name: str) -> None:
    """Goes behind the hooks for folders and zip files: it is asked for little else, and leaves."""
    script = name if os.path.isabs(name) else os.path.join(os.getcwd(), name)

    def claim(asked: str) -> _ScriptImporter:
        with contained(tell=partial(hook_failed, "__main__")):
            if _is_same_file(asked, script):
                if sys.path_hooks[-1:] == [claim]:
                    sys.path_hooks.pop()
                code = _compile_script(asked)
                if code is not None:
                    return _ScriptImporter(asked, code, claim)
        raise ImportError(asked)

    sys.path_hooks.append(claim)


def _looks_like_source(path: str) -> bool:
    """Whether this is a file of text; zip files and folders have an importer of their own."""
    with contained(OSError), open(path, "rb") as file:
        return b"\0" not in file.read(1024)
    return False


def _is_same_file(one: str, other: str) -> bool:
    with contained(OSError):
        return os.path.basename(one) == os.path.basename(other) and os.path.samefile(one, other)
    return False


class _ScriptImporter:
    """What the script's path resolves to while CPython decides how to run it."""

    def __init__(self, path: str, code: CodeType, claim: Any) -> None:
        self._claim = claim
        self._path = path
        self._code = code

    def find_spec(self, name: str, target: Any = None) -> ModuleSpec | None:
        del target
        if name != "__main__":
            return None
        spec = ModuleSpec("__main__", self, origin=self._path)  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def get_code(self, name: str) -> CodeType:
        del name
        builtins.__rltrace_run__ = self._run  # type: ignore[attr-defined]
        return compile("__rltrace_run__(globals())", self._path, "exec", dont_inherit=True)

    def _run(self, main: dict[str, Any]) -> None:
        del builtins.__rltrace_run__  # type: ignore[attr-defined]
        if self._claim in sys.path_hooks:
            sys.path_hooks.remove(self._claim)
        sys.path_importer_cache.pop(self._path, None)
        if sys.path and sys.path[0] == self._path:
            if getattr(sys.flags, "safe_path", False):
                del sys.path[0]
            else:
                sys.path[0] = os.path.dirname(os.path.realpath(self._path))
        main.update(
            __file__=self._path,
            __loader__=SourceFileLoader("__main__", self._path),
            __package__=None,
            __spec__=None,
            __cached__=None,
        )
        try:
            exec(self._code, main)
        except BaseException:
            sys.excepthook = _without_our_frames(sys.excepthook, self._path)
            raise


def _without_our_frames(shown_by: Any, path: str) -> Any:
    """An excepthook that shows the traceback from the script's frame on."""

    def excepthook(kind: type, error: BaseException, trace: TracebackType | None) -> None:
        start = trace
        while start is not None:
            code = start.tb_frame.f_code
            if code.co_filename == path and "__rltrace_run__" not in code.co_names:
                break
            start = start.tb_next
        shown_by(kind, error.with_traceback(start or trace), start or trace)

    return excepthook


def _patch_runpy(runpy: Any) -> None:
    """Has every script that `runpy` reads (`run_path`, spawned children) compiled here as well."""
    original = runpy._get_code_from_file

    def _get_code_from_file(*args: Any) -> Any:
        code = original(*args)  # before Python 3.12: (code, file name)
        with contained():  # not a file that we can read: Python could
            ours = _compile_script(os.fsdecode(args[-1]))
            if ours is not None:
                return (ours, code[1]) if isinstance(code, tuple) else ours
        return code

    runpy._get_code_from_file = _get_code_from_file
