"""Whatever is published, from whatever source and into whatever memory: a receiver holds what the
learner held at that version, or there is an error, which leaves the receiver as it was.

`RLTRACE_TEST_SYNC_EXAMPLES=5000` tries as many; each is drawn from a seed of its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from rltrace.sync import (
    DamagedError,
    PoisonedError,
    Publisher,
    Shard,
    Subscriber,
    Version,
    layout_of,
)
from rltrace.sync.memory.dtypes import FLOATS, code_of
from rltrace.testing.inside.sync import CONTROL, folder_of
from rltrace.testing.inside.trace import RltraceError

EXAMPLES = int(os.environ.get("RLTRACE_TEST_SYNC_EXAMPLES", "150"))
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16),
    *(torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
]
SHAPES = [(), (1,), (0,), (3, 0), (5,), (4, 6), (2, 3, 4), (7, 1), (64, 64), (33, 7)]
LARGE = [(600, 300), (1 << 17,), ((1 << 19) + 3,)]
NOT_NUMPY = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
Bits = bytes


def drawn(rand: Random, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Any bits; those of a bool are 0 and 1."""
    size = int(np.prod(shape)) * dtype.itemsize
    noise = np.random.default_rng(rand.getrandbits(32)).integers(0, 256, size, dtype=np.uint8)
    if dtype == torch.bool:
        noise &= 1
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(noise).view(dtype).reshape(shape)


def as_torch(tensor: Any) -> torch.Tensor:
    """A copy of it, laid out plainly."""
    if not isinstance(tensor, torch.Tensor):
        return torch.from_numpy(np.array(tensor, order="C", copy=True))
    plain = tensor.detach().resolve_conj().resolve_neg()
    return torch.empty(plain.shape, dtype=plain.dtype).copy_(plain)


def bits(tensor: Any) -> Bits:
    """The elements in order, as they are in memory."""
    plain = as_torch(tensor).reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def source(rand: Random) -> Any:
    """A learner's tensor, laid out in one of many ways."""
    shape = rand.choice(LARGE if rand.random() < 0.03 else SHAPES)
    dtype = rand.choice(DTYPES)
    tensor = drawn(rand, dtype, shape)
    kind = rand.randrange(9)
    if kind == 0 and len(shape) > 1:
        return drawn(rand, dtype, shape[::-1]).permute(*range(len(shape) - 1, -1, -1))
    if kind == 1 and shape and tensor.numel():
        return drawn(rand, dtype, (shape[0] * 2, *shape[1:]))[::2]
    if kind == 2 and len(shape) > 1 and tensor.numel():
        return drawn(rand, dtype, (1, *shape[1:])).expand(shape)
    if kind in (3, 4) and dtype == torch.complex64:
        return tensor.conj() if kind == 3 else tensor.conj().imag
    if kind > 5 and dtype not in NOT_NUMPY:
        return tensor.numpy()[::-1] if kind == 6 and shape else tensor.numpy()
    return tensor


def module_of(tensors: dict[str, torch.Tensor]) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


class Learner:
    """Names and tensors, some of them tied, as they can be handed over."""

    def __init__(self, rand: Random) -> None:
        self.rand = rand
        self.tensors = {f"t{i}": source(rand) for i in range(rand.randrange(1, 9))}
        for name in list(self.tensors):
            if rand.random() < 0.15:
                self.tensors[f"{name}_tied"] = self.tensors[name]
        self.torch_only = all(isinstance(t, torch.Tensor) for t in self.tensors.values())

    def change(self) -> None:
        """A step: other values, other memory, ties that end."""
        for name, tensor in list(self.tensors.items()):
            draw = self.rand.random()
            changed = as_torch(tensor)
            if not (draw < 0.3 and name.endswith("_tied")):
                if draw >= 0.7:
                    continue
                if changed.numel():
                    flat = changed.reshape(-1).view(torch.uint8)
                    flat[self.rand.randrange(len(flat))] ^= 1
            is_torch = isinstance(tensor, torch.Tensor)
            self.tensors[name] = changed if is_torch else changed.numpy()

    def given(self) -> Any:
        """The tensors, from one of many kinds of sources."""
        kinds: list[Callable[[], Any]] = [lambda: dict(self.tensors), self._listed]
        if self.torch_only:
            kinds += [lambda: module_of(self.tensors), self._reused]
        return self.rand.choice(kinds)()

    def _listed(self) -> Any:
        items = list(self.tensors.items())
        self.rand.shuffle(items)
        return items

    def _reused(self) -> Iterator[tuple[str, torch.Tensor]]:
        buffers: dict[Any, torch.Tensor] = {}
        for name, tensor in self.tensors.items():
            fresh = torch.empty(tensor.shape, dtype=tensor.dtype)
            yield name, buffers.setdefault((tensor.shape, tensor.dtype), fresh).copy_(tensor)


class Here:
    """A receiver's tensors, with elements around them that are nobody's."""

    def __init__(self, rand: Random, truth: dict[str, torch.Tensor], casts: set[str]) -> None:
        self.rand, self.casts, self.is_copy = rand, casts, False
        self.buffers: list[torch.Tensor] = []
        self.around: list[torch.Tensor] = []
        self.partial, self.cast = rand.random() < 0.3, rand.random() < 0.3
        names = [name for name in truth if not self.partial or rand.random() < 0.6]
        self.items = [(name, *self._place(truth[name])) for name in names]
        if len(names) > 1 and rand.random() < 0.15:  # one place for two
            (name, _, shard), (_, other, _) = self.items[0], self.items[1]
            self.items[0] = name, other, shard
        self.given = self.items if any(s for _, _, s in self.items) else self._whole()

    def _whole(self) -> Any:
        tensors = {name: tensor for name, tensor, _ in self.items}
        if self.rand.random() < 0.3 and all(isinstance(t, torch.Tensor) for t in tensors.values()):
            module = module_of(tensors)
            if self.rand.random() < 0.3:
                module._register_state_dict_hook(
                    lambda module, state, *_: {k: v.clone() for k, v in state.items()}
                )
                self.is_copy = any(t.numel() for t in tensors.values())
            return module
        return tensors if self.rand.random() < 0.7 else list(tensors.items())

    def _place(self, like: torch.Tensor) -> tuple[Any, Shard | None]:
        shape, shard, dtype = tuple(like.shape), None, like.dtype
        if self.cast and code_of(dtype) in FLOATS:
            dtype = self.rand.choice([torch.float32, torch.float64, torch.bfloat16, torch.float16])
        if shape and shape[0] > 1 and self.rand.random() < 0.2:
            begin = self.rand.randrange(shape[0])
            end = self.rand.randrange(begin, shape[0]) + 1
            shard = Shard((begin, *([0] * (len(shape) - 1))), shape)
            shape = (end - begin, *shape[1:])
        kind, count = self.rand.randrange(3), int(np.prod(shape))
        if kind == 0:  # every second element
            buffer = drawn(self.rand, dtype, (*shape, 2))
            tensor, around = buffer[..., 1], [buffer[..., 0]]
        else:
            buffer = drawn(self.rand, dtype, (count + 16,))
            tensor, around = buffer[8 : 8 + count].view(shape), [buffer[:8], buffer[-8:]]
        self.buffers.append(buffer)
        self.around += around
        return (tensor.numpy() if kind == 2 and dtype not in NOT_NUMPY else tensor), shard

    def memory(self) -> list[Bits]:
        """All bytes, those around the tensors included."""
        return [bits(buffer) for buffer in self.buffers]

    def outside(self) -> list[Bits]:
        return [bits(part) for part in self.around]

    def wrong(self, truth: dict[str, torch.Tensor]) -> list[str]:
        """The names whose tensors are not what they are to be."""
        found = []
        for name, tensor, shard in self.items:
            held, wanted = as_torch(tensor), truth[name]
            if shard is not None:
                wanted = wanted[shard.offset[0] : shard.offset[0] + held.shape[0]]
            if bits(held) == bits(wanted.to(held.dtype)):
                continue
            # A cast may change what a NaN carries, and does so differently in vectors and alone.
            is_cast = held.dtype != wanted.dtype or code_of(wanted.dtype) in self.casts
            one, other = held.double().numpy(), wanted.to(held.dtype).double().numpy()
            if not is_cast or not np.array_equal(one, other, equal_nan=True):
                found.append(name)
        return found


def damage(rand: Random, folder: Path) -> None:
    """Flips a bit of what readers read: of a slot's file, or of a record or block table."""
    path = rand.choice([*folder.glob("slot-*"), folder / CONTROL])
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = 8192 if path.name == CONTROL else 0
        at = rand.randrange(min(start, size - 1), size)
        file.seek(at)
        byte = file.read(1)[0] ^ (1 << rand.randrange(8))
        file.seek(at)
        file.write(bytes([byte]))


class Play:
    """One learner, its restarts, and a worker that pulls."""

    def __init__(self, rand: Random, where: str) -> None:
        self.rand, self.where = rand, where
        self.learner = Learner(rand)
        self.dtype = rand.choice([None, None, "bfloat16", "float32"])
        self.truths: dict[Version, dict[str, torch.Tensor]] = {}
        self.newest: Version | None = None
        self.publisher = self.opened()
        self.subscriber: Subscriber | None = None

    def opened(self) -> Publisher:
        run = self.rand.choice([None, "a" * 16, "b" * 16])
        self.layout = layout_of(self.learner.given(), self.dtype)
        return Publisher.open(self.layout, self.where, threads=1, run=run)

    def publish(self) -> None:
        truth = {}
        for name, tensor in self.learner.tensors.items():
            plain = as_torch(tensor)
            is_cast = code_of(plain.dtype) != self.layout.by_name[name].dtype
            truth[name] = plain.to(getattr(torch, str(self.dtype))) if is_cast else plain
        if any(bits(truth[name]) != bits(truth[home]) for name, home in self.layout.aliases):
            with pytest.raises(RltraceError, match="no longer tied"):
                self.publisher.publish(self.learner.given())
            return
        version = self.publisher.publish(self.learner.given())
        assert self.newest is None or version > self.newest
        self.newest, self.truths[version] = version, truth

    def restart(self) -> None:
        self.publisher.close()
        if self.subscriber is not None and self.rand.random() < 0.5:
            self.subscriber.close()
            self.subscriber = None
        if self.rand.random() < 0.2:
            shutil.rmtree(folder_of(self.where), ignore_errors=True)
        if self.rand.random() < 0.3:
            self.learner = Learner(self.rand)
        self.publisher = self.opened()

    def pull(self, damaged: bool) -> None:
        try:
            self.subscriber = self.subscriber or Subscriber.connect(self.where, threads=1)
            subscriber, latest = self.subscriber, self.subscriber.latest()
        except RltraceError:
            assert damaged
            return
        if latest is None:
            return
        truth = self.truths[latest]
        casts = {code_of(self.dtype)} if self.dtype else set()
        here = Here(self.rand, truth, casts)
        before, outside = here.memory(), here.outside()
        try:
            if self.rand.random() < 0.3:
                subscriber.stage(here.given, partial=here.partial, cast=here.cast)
                subscriber.commit()
            else:
                subscriber.pull_into(here.given, partial=here.partial, cast=here.cast)
        except (DamagedError, PoisonedError):
            assert damaged
            assert here.outside() == outside
            return
        except RltraceError as error:
            assert here.memory() == before
            said = str(error)
            fair = "overlap", "share their memory", "is a copy", "has shape", "it was published"
            assert damaged or any(words in said for words in fair), said
            return
        assert subscriber.applied.version == latest == self.newest
        assert subscriber.error is None
        assert not here.wrong(truth)
        assert here.outside() == outside
        assert not here.is_copy

    def close(self) -> None:
        self.publisher.close()
        if self.subscriber is not None:
            self.subscriber.close()


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, (1 << 63) - 1))
def test_a_receiver_holds_what_the_learner_held_or_there_is_an_error(where: str, seed: int) -> None:
    rand = Random(seed)
    play = Play(rand, where)
    try:
        play.publish()
        for _ in range(rand.randrange(1, 5)):
            damaged = rand.random() < 0.1
            if damaged:
                damage(rand, folder_of(play.where))
            play.pull(damaged)
            if damaged:
                break
            if rand.random() < 0.4:
                play.restart()
            play.learner.change()
            play.publish()
    finally:
        play.close()
        shutil.rmtree(folder_of(play.where), ignore_errors=True)
