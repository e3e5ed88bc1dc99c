"""A model's tensors with random bits, and what copying them takes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from rltrace.testing.inside.sync import ITEM_BYTES, code_of, copy_bytes, torch_name
from rltrace.testing.inside.trace import RltraceError, WrongUsage, open_given

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from torch import Tensor

_MOST_HEADER_BYTES = 100 << 20
Weights = dict[str, "Tensor"]


@dataclass(frozen=True)
class Model:
    """Tensors by name: (type, shape), a type being a code of `rltrace.sync.memory.dtypes`.
    `asked_bytes` is what it was cut to, as near as whole layers come; 0: it is not cut."""

    name: str
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    asked_bytes: float = 0.0

    @property
    def bytes(self) -> int:
        return sum(ITEM_BYTES[code] * prod(shape) for code, shape in self.tensors.values())

    def made(self, seed: int) -> Weights:
        """Random bits, the same for a seed; every page of them touched."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        made: Weights = {}
        for name, (code, shape) in self.tensors.items():
            size = prod(shape) * ITEM_BYTES[code]
            bits = torch.empty(-(-size // 8) * 8, dtype=torch.uint8)
            bits.view(torch.int64).random_(generator=generator)
            if code == "BOOL":
                bits &= 1
            made[name] = bits[:size].view(getattr(torch, torch_name(code))).view(shape)
        return made


def model_of(name: str, megabytes: float = 0.0) -> Model:
    """A known model, with as many whole layers as make about `megabytes` (10⁶ bytes; 0: all), or
    the tensors of a safetensors file. Errors: `RltraceError`."""
    known = tomllib.loads(Path(__file__).with_name("models.toml").read_text("utf-8"))
    if name in known:
        return _scaled(name, known[name], megabytes)
    if not Path(name).exists():
        said = f"{name} is no model that is known ({', '.join(known)}), nor a safetensors file"
        raise WrongUsage(said)
    return _of_file(Path(name))


def digest(weights: Weights) -> str:
    import torch

    whole = xxhash.xxh3_128()
    for tensor in weights.values():
        whole.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()


def _scaled(name: str, said: dict[str, Any], megabytes: float) -> Model:
    def tensors(share: float) -> dict[str, tuple[str, tuple[int, ...]]]:
        found = {n: (code, tuple(shape)) for n, code, shape in said["first"]}
        for n, (code, shape) in found.items():
            found[n] = code, (max(1, round(shape[0] * share)), *shape[1:])
        for number in range(max(1, round(said["layers"] * share))):
            found |= {n.format(n=number): (c, tuple(shape)) for n, c, shape in said["layer"]}
        return found | {n: (code, tuple(shape)) for n, code, shape in said["last"]}

    whole = Model(name, tensors(1.0))
    asked = megabytes * 1e6
    if not asked or asked >= whole.bytes:
        return whole
    return Model(name, tensors(asked / whole.bytes), asked)


def _of_file(path: Path) -> Model:
    try:
        with open_given(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _MOST_HEADER_BYTES:
                raise ValueError("its header is too long")
            said = json.loads(file.read(length))
        tensors = {
            name: (code_of(about["dtype"]), tuple(int(n) for n in about["shape"]))
            for name, about in said.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RltraceError(f"{path} is no safetensors file: {error}") from error
    return Model(path.name, tensors)


def seconds(do: Callable[[], object]) -> float:
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


class Memory:
    def __init__(self, weights: Weights, into: Weights) -> None:
        self._kept = weights, into
        self._pairs = [
            (into[name].data_ptr(), tensor.data_ptr(), tensor.nbytes)
            for name, tensor in weights.items()
        ]
        self._second = ThreadPoolExecutor(1, thread_name_prefix="rltrace.sync")

    def one_thread_s(self) -> float:
        return seconds(lambda: self._copy(0, 1))

    def two_threads_s(self) -> float:
        def both() -> None:
            second = self._second.submit(self._copy, 1, 2)
            self._copy(0, 2)
            second.result()

        return seconds(both)

    def close(self) -> None:
        self._second.shutdown()

    def _copy(self, part: int, parts: int) -> None:
        for to, source, size in self._pairs:
            start, end = size * part // parts, size * (part + 1) // parts
            copy_bytes(to + start, source + start, end - start)
