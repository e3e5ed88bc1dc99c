"""Calls back when a module is looked for, and after its code has run.

An unwatched module costs one dictionary look-up. For a watched one the finders behind ours find it,
and their loader loads it; only the moment after `exec_module` is added. Every traced process does
this, so nothing is imported here.
"""

from __future__ import annotations

import sys

from rltrace.trace.job_exceptions import contained

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Report = Callable[[str, BaseException], None]
    """Told the module's name and what a callback raised; the import itself goes on."""


class ImportFinder:
    """A finder, first on `sys.meta_path`. What callbacks raise is reported."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._before: dict[str, list[Callable[[], None]]] = {}
        self._after: dict[str, list[Callable[[Any], None]]] = {}
        self._main: dict[str, Callable[[Any, str], Any]] = {}

    def before(self, name: str, callback: Callable[[], None]) -> None:
        """Calls back once, when `name` is first looked for; now, if it is imported."""
        if name in sys.modules:
            self._call(name, callback)
        else:
            self._before.setdefault(name, []).append(callback)

    def after(self, name: str, callback: Callable[[Any], None]) -> None:
        """Calls back with the module each time its code runs (also on reload), now if imported."""
        self._after.setdefault(name, []).append(callback)
        module = sys.modules.get(name)
        if module is not None:
            self._call(name, callback, module)

    def run_as_main(self, name: str, compile_main: Callable[[Any, str], Any]) -> None:
        """Has `compile_main(loader, name)` supply the code when `runpy` runs the module (`python
        -m`); where it gives `None`, and for every import, the loader's own code is used."""
        self._main[name] = compile_main

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec that the finders behind this one give; `None` for modules nobody watches."""
        if name in self._before:
            self.announce(name)
        if name not in self._after and name not in self._main:
            return None
        spec = self._find_behind(name, path, target)
        if spec is not None and spec.loader is not None:
            self._watch(spec, name)
        return spec

    def announce(self, name: str) -> None:
        for callback in self._before.pop(name, ()):
            self._call(name, callback)

    def executed(self, name: str, module: Any) -> None:
        for callback in list(self._after.get(name, ())):
            self._call(name, callback, module)

    def _find_behind(self, name: str, path: Any, target: Any) -> Any:
        finders = list(sys.meta_path)
        first = finders.index(self) + 1 if self in finders else 0
        for finder in finders[first:]:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec is not None else None
            if spec is not None:
                return spec
        return None

    def _watch(self, spec: Any, name: str) -> None:
        from _frozen_importlib_external import FileLoader, SourceLoader

        loader: Any = spec.loader
        is_file = isinstance(loader, FileLoader)  # one object a module: nothing else can notice
        has_source = isinstance(loader, SourceLoader) or type(loader).__module__ == "zipimport"
        if has_source and name in self._main:
            loader.get_code = _code_for_runpy(loader, self._main[name])
        if name not in self._after or not hasattr(loader, "exec_module"):
            return
        if is_file:
            loader.exec_module = _exec_then(self, loader, name)
        else:  # shared between modules (zipimport) or not even an object (frozen modules)
            spec.loader = _Loader(self, loader, name)

    def _call(self, name: str, callback: Callable[..., None], *args: Any) -> None:
        with contained(tell=lambda error: self._report(name, error)):
            callback(*args)


def _exec_then(finder: ImportFinder, loader: Any, name: str) -> Callable[[Any], None]:
    earlier = vars(loader).get("exec_module")  # of another finder like this one

    def exec_module(module: Any) -> None:
        if earlier is None:
            vars(loader).pop("exec_module", None)  # once is enough; the loader is as it was
        else:
            loader.exec_module = earlier  # it does so itself
        loader.exec_module(module)
        finder.executed(name, module)

    return exec_module


def _code_for_runpy(loader: Any, compile_main: Callable[[Any, str], Any]) -> Callable[[str], Any]:
    own = loader.get_code

    def get_code(fullname: str) -> Any:
        if sys._getframe(1).f_globals.get("__name__") == "runpy":
            vars(loader).pop("get_code", None)  # once is enough; the loader is as it was
            code = compile_main(loader, fullname)
            if code is not None:
                return code
        return own(fullname)

    return get_code


class _Loader:
    """Stands in for a loader until the module's code runs; from then on the loader itself shows."""

    def __init__(self, finder: ImportFinder, loader: Any, name: str) -> None:
        self._finder = finder
        self._loader = loader
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._loader, attribute)

    def create_module(self, spec: Any) -> Any:
        create = getattr(self._loader, "create_module", None)
        return None if create is None else create(spec)

    def exec_module(self, module: Any) -> None:
        """Runs the module's code with everything as the loader itself would have set it."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._finder.executed(self._name, module)
