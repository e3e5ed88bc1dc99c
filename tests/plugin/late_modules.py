"""Modules of a framework that are changed once they have been executed, in every process of a job:
for what no registry of the framework reaches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]


class _LateLoader(Loader):
    """Executes a module, then changes it."""

    def __init__(self, inner: Any, change: Change) -> None:
        self.inner = inner
        self.change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        self.change(module)

    def __getattr__(self, name: str) -> Any:  # torch.compile and others ask for the source
        return getattr(self.inner, name)


class _LateFinder(MetaPathFinder):
    def __init__(self, changes: Mapping[str, Change]) -> None:
        self.changes = changes

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname not in self.changes:
            return None
        # Only the finders after this one, so that several of its kind can stand in a row.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _LateLoader(spec.loader, self.changes[fullname])
                return spec
        return None


def install(changes: Mapping[str, Change]) -> None:
    """From now on these modules are changed as they are imported, and those that are there, now."""
    sys.meta_path.insert(0, _LateFinder(changes))
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
