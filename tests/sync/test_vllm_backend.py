"""vLLM's plug-in hook, which vLLM calls in all of its processes: whatever is there, nothing raises.
`tests/openrlhf/test_vllm_registry.py` has vLLM's own registries."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rltrace.plugins import vllm_backend

FACTORY = "vllm.distributed.weight_transfer.factory"


class Factory:
    """A registry as vLLM has it."""

    def __init__(self) -> None:
        self._registry: dict[str, str] = {}

    def register_engine(self, name: str, module: str, engine: str) -> None:
        """vLLM's, which refuses a name that it has."""
        if name in self._registry:
            raise ValueError(f"{name} is registered already")
        self._registry[name] = f"{module}:{engine}"


def of_vllm(monkeypatch: pytest.MonkeyPatch, worker: Any, trainer: Any) -> None:
    """There is such a vLLM."""
    parts = FACTORY.split(".")
    for end in range(1, len(parts)):
        name = ".".join(parts[:end])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    factories = {"WeightTransferEngineFactory": worker, "WeightTransferTrainerFactory": trainer}
    monkeypatch.setitem(sys.modules, FACTORY, SimpleNamespace(**factories))


def test_engines_are_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, trainer = Factory(), Factory()
    of_vllm(monkeypatch, worker, trainer)
    vllm_backend.register()
    vllm_backend.register()
    assert [list(factory._registry) for factory in (worker, trainer)] == [["rltrace"]] * 2


class Unready(ModuleType):
    """A module that fails as it is looked into."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no device")


@pytest.mark.parametrize(
    ("module", "said"), [(None, "'rltrace' cannot be registered"), (Unready(FACTORY), "no device")]
)
def test_a_vllm_that_is_another_one_or_fails_costs_the_backend_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, module: Any, said: str
) -> None:
    of_vllm(monkeypatch, SimpleNamespace(), Factory())
    if module is not None:
        monkeypatch.setitem(sys.modules, FACTORY, module)
    vllm_backend.register()
    assert said in caplog.text
