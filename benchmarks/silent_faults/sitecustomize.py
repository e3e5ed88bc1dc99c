"""Damages what the engines of the built-in trainer hold, behind everybody's back.

Its folder stands first on PYTHONPATH of a job. `SILENT_FAULT` names what goes wrong,
`SILENT_FAULT_FROM` the version of the weights with which it begins, `SILENT_FAULT_VICTIM` a file
into which the first engine that comes writes its pid: it suffers where not all do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_ENGINE = "rltrace.trainer.learning.engine"
_FAULT, _FROM = os.environ.get("SILENT_FAULT", ""), int(os.environ.get("SILENT_FAULT_FROM", "0"))

Weights = dict[str, Any]  # tensors by name
Damage = Callable[[Weights, Weights, Weights], Weights]  # of what came, was before, was at first


def _half(new: Weights, before: Weights, first: Weights) -> Weights:
    return {name: before[name] for name in list(new)[len(new) // 2 :]}


def _float8(new: Weights, before: Weights, first: Weights) -> Weights:
    import torch

    return {name: one.to(torch.float8_e4m3fn).to(one.dtype) for name, one in new.items()}


_SQUARE, _WIDE, _HEAD = "blocks.1.attention.out.weight", "blocks.1.mlp.0.weight", "head.weight"
_NORM = "blocks.1.mlp_norm"

# What the engine holds instead; for how many versions (0: from then on); whether all engines do.
WEIGHTS: dict[str, tuple[Damage, int, bool]] = {
    "sync skipped for one engine": (lambda new, before, first: before, 1, False),
    "sync skipped for all": (lambda new, before, first: before, 1, True),
    "stale tensor": (lambda new, before, first: {_WIDE: before[_WIDE]}, 0, False),
    "tensor not copied": (lambda new, before, first: {_WIDE: first[_WIDE]}, 0, True),
    "cast through float8": (_float8, 0, True),
    "transposed square tensor": (lambda new, before, first: {_SQUARE: new[_SQUARE].T}, 0, False),
    "restarted with the first weights": (lambda new, before, first: first, 1, False),
    "half a sync": (_half, 1, False),
    "layer norm's scale dropped": (
        lambda new, before, first: {f"{_NORM}.weight": first[f"{_NORM}.weight"]}, 0, False
    ),
    "head tied to the embedding": (
        lambda new, before, first: {_HEAD: new["tokens.weight"]}, 0, False
    ),
}  # fmt: skip


def _temperature(logits: Any) -> Any:
    return logits / 0.8


def _top_p(logits: Any) -> Any:
    import torch

    shares, order = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True)
    beyond = shares.cumsum(dim=-1) - shares > 0.9
    return logits.masked_fill(beyond.scatter(-1, order, beyond), float("-inf"))


SAMPLING = {"another temperature": _temperature, "top-p": _top_p}  # of one engine
ALL = (*WEIGHTS, *SAMPLING)
EVERYWHERE = [name for name, (_, _, everybody) in WEIGHTS.items() if everybody]


def _suffers() -> bool:
    try:
        with open(os.environ["SILENT_FAULT_VICTIM"], "x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        with open(os.environ["SILENT_FAULT_VICTIM"]) as file:
            return file.read() == str(os.getpid())
    return True


def _clone(engine: Any) -> Weights:
    return {name: one.clone() for name, one in engine.model.state_dict().items()}


def _damage_weights(engine_class: Any, damage: Damage, versions: int, everybody: bool) -> None:
    begin, renew = engine_class.__init__, engine_class.renew

    def began(engine: Any, *arguments: Any, **named: Any) -> None:
        begin(engine, *arguments, **named)
        engine.first = engine.before = engine.true = _clone(engine)
        engine.suffers = _suffers() or everybody

    def renewed(engine: Any, version: int) -> None:
        # What is stale is of the version before the fault, not of the one before this one.
        engine.before = engine.true if version <= _FROM else engine.before
        engine.true = _clone(engine)
        held = version >= _FROM and not (versions and version >= _FROM + versions)
        if engine.suffers and held:
            state = engine.model.state_dict()
            for name, tensor in damage(engine.true, engine.before, engine.first).items():
                state[name].copy_(tensor)
        renew(engine, version)

    engine_class.__init__, engine_class.renew = began, renewed


def _damage_sampling(engine_class: Any, change: Callable[[Any], Any]) -> None:
    begin, sample = engine_class.__init__, engine_class._sample

    def began(engine: Any, *arguments: Any, **named: Any) -> None:
        begin(engine, *arguments, **named)
        engine.suffers = _suffers()

    def sampled(engine: Any, rows: Any, logits: Any) -> None:
        sample(
            engine, rows, change(logits) if engine.suffers and engine.version >= _FROM else logits
        )

    engine_class.__init__, engine_class._sample = began, sampled


class _Damaged(Loader):
    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        engine_class: Any = module.Engine
        if _FAULT in WEIGHTS:
            _damage_weights(engine_class, *WEIGHTS[_FAULT])
        else:
            _damage_sampling(engine_class, SAMPLING[_FAULT])


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _ENGINE:
            return None
        others = [one for one in sys.meta_path if one is not self]
        found = next(filter(None, (one.find_spec(name, path, target) for one in others)), None)
        if found is not None and found.loader is not None:
            found.loader = _Damaged(found.loader)
        return found


if _FAULT:  # not where it is imported for its names
    sys.meta_path.insert(0, _Finder())
