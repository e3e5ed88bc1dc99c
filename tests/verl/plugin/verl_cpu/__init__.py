"""verl on a CPU: a platform, an engine, a rollout server, and a checkpoint engine over gloo.

verl imports this package in each of its processes (`VERL_USE_EXTERNAL_MODULES=verl_cpu`), when it
is half imported itself. What has to be registered with modules that come later is registered as
each of them has been executed.

    platform.py     what verl asks of a device
    late.py         the registrations
    rollout.py      the server's place in verl: its launch, and weights pushed to it
    server.py       the server: transformers, one batch of requests at a time
    sampling.py     draws that do not depend on what else is in the batch
    checkpoint.py   weights over gloo, for trainers that are apart from their rollout
    reward.py       a rule
    tools.py        a tool
    stamps.py       when each of these worked, by its own clock
    dying.py        where one of them is to die
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from verl_cpu import late, platform


class _LateLoader(Loader):
    """Executes a module, then registers what belongs to it."""

    def __init__(self, inner: Any, register: Any) -> None:
        self.inner = inner
        self.register = register

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        self.register(module)


class _LateFinder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        register = late.REGISTER.get(fullname)
        if register is None:
            return None
        # Only the finders after this one, so that several of its kind can stand in a row.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _LateLoader(spec.loader, register)
                return spec
        return None


platform.register()
sys.meta_path.insert(0, _LateFinder())
for _name, _register in late.REGISTER.items():
    if _name in sys.modules:
        _register(sys.modules[_name])
