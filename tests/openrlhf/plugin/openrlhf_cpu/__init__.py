"""OpenRLHF on a CPU: what it, DeepSpeed and vLLM expect of CUDA, and what the parts of a job did.

OpenRLHF has no registry for any of this, so modules are changed as each of them has been executed,
in every process of the job (`sitecustomize.py` beside this package). The command stays the user's.

    late.py         which module, and what is done to it
    device.py       torch without CUDA
    cluster.py      a Ray of its own, whose "GPU" is a mere number
    gathered.py     parameters of several ranks, over gloo
    transfer.py     weights over gloo, and into a vLLM for CPUs
    watched.py      stamps of requests and of updates
    reward.py       a rule
    agent.py        an environment of two turns
    bad_reward.py   a rule that fails
    failing.py      an engine that fails
    stamps.py       when each of these worked, by its own clock
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from openrlhf_cpu import late


class _LateLoader(Loader):
    """Executes a module, then changes it."""

    def __init__(self, inner: Any, name: str) -> None:
        self.inner = inner
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        late.change(self.name, module)

    def __getattr__(self, name: str) -> Any:  # torch.compile and others ask for the source
        return getattr(self.inner, name)


class _LateFinder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname not in late.CHANGES:
            return None
        # Only the finders after this one, so that several of its kind can stand in a row.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _LateLoader(spec.loader, fullname)
                return spec
        return None


def install() -> None:
    """From now on what is imported is changed; called before anything is."""
    sys.meta_path.insert(0, _LateFinder())
