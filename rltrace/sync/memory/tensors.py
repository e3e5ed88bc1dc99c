"""The addresses of tensors, and tensors over memory that is there.

torch is loaded only where a tensor of torch's is given or asked for.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.memory.dtypes import code_of, numpy_dtype, torch_name
from rltrace.sync.memory.layout import Layout, Shard, TensorEntry

if TYPE_CHECKING:
    from torch import Tensor

_MOST_WORK = 1_000_000


def stand_in() -> str:
    """The module that stands for the device, for tests: tensors of the host count as its."""
    return os.environ.get("RLTRACE_SYNC_DEVICE", "")


def is_torch(tensor: Any) -> bool:
    return hasattr(tensor, "data_ptr")


def now_on_device() -> tuple[Any, ...]:
    """Where this thread's work on its current device stands; () where it has used none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ()
    return (torch.cuda.current_stream().record_event(),)


def address_of(tensor: Any, code: str) -> int:
    """Where the tensor's elements lie, in order, as this type, in this process; else 0."""
    if is_torch(tensor):
        same = str(tensor.dtype) == f"torch.{torch_name(code)}"
        return _start_of(tensor) if same and tensor.device.type == "cpu" else 0
    if tensor.dtype.isnative and _fits(tensor.dtype, code) and tensor.flags.c_contiguous:
        return int(tensor.__array_interface__["data"][0])
    return 0


class Matcher:
    """Finds the tensors that a plain copy moves: whole, in order, of the entry's type, in this
    process. It takes half a microsecond each, as all is asked in place."""

    def __init__(self, layout: Layout) -> None:
        self._numbers = layout.numbers
        self._entries = layout.entries
        self._wanted: tuple[list[Any], list[Any]] | None = None

    def match(
        self, given: Mapping[str, Any], addresses: list[int], tensors: list[Any], far: list[int]
    ) -> list[tuple[str, Any]]:
        """Sets address (a device's in `far`) and tensor by number of the entry; returns what takes
        a longer look: other tensors, further ones of an entry, unknown names."""
        torch = sys.modules.get("torch")
        if torch is None:
            return list(given.items())
        if self._wanted is None:
            movable = [not e.shard and e.dtype != "C64" for e in self._entries]
            names = [torch_name(entry.dtype) for entry in self._entries]
            dtypes = [getattr(torch, n) if m else None for n, m in zip(names, movable, strict=True)]
            self._wanted = dtypes, [entry.shape for entry in self._entries]
        dtypes, shapes = self._wanted
        numbers, strided, plain = self._numbers, torch.strided, (torch.Tensor, torch.nn.Parameter)
        host = far if stand_in() else addresses
        rest = []
        for name, tensor in given.items():
            number = numbers.get(name, -1)
            if (
                number >= 0
                and tensors[number] is None
                and type(tensor) in plain
                and tensor.dtype is dtypes[number]
                and (tensor.is_cpu or tensor.is_cuda)
                and tensor.layout is strided
                and not tensor.is_nested
                and tensor.shape == shapes[number]
                and tensor.is_contiguous()
                and not tensor.is_neg()
                and (address := tensor.data_ptr())
            ):
                (host if tensor.is_cpu else far)[number], tensors[number] = address, tensor
            else:
                rest.append((name, tensor))
        return rest


def lies_elsewhere(tensor: Any) -> str:
    """Why it has no elements here, and what to give instead; "" where it has."""
    if hasattr(tensor, "full_tensor"):
        said = "is a DTensor, of which this process has a part: give its full_tensor(), or its"
        return f"{said} to_local() as (name, tensor, Shard(offset, global_shape))"
    if is_torch(tensor) and tensor.device.type == "meta":
        return "is on the meta device, so it has no memory: give one on a real device"
    return ""


def overlaps_itself(tensor: Any) -> bool:
    """Whether two elements may lie at one place; also for strides that slicing and transposing
    cannot make: to tell exactly would be to visit every element."""
    strides = tensor.stride() if is_torch(tensor) else tensor.strides
    unit = 1 if is_torch(tensor) else tensor.itemsize
    end = 0  # of what the dimensions so far reach
    for stride, size in sorted(zip(map(abs, strides), tensor.shape, strict=True)):
        if size == 0:
            return False
        if size > 1 and stride < end + unit:
            return True
        end += stride * (size - 1)
    return False


def far_address_of(tensor: Any) -> int:
    """Where a device's tensor has its elements, in order; 0 for others and for special kinds."""
    torch = sys.modules.get("torch")
    if torch is None or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return 0
    return _start_of(tensor) if tensor.is_cuda or (stand_in() and tensor.is_cpu) else 0


def numpy_view(data: NDArray[np.uint8], entry: TensorEntry) -> NDArray[Any]:
    """An entry's elements in place; those of a type that NumPy lacks as unsigned integers."""
    part = data[entry.offset : entry.offset + entry.bytes]
    return part.view(numpy_dtype(entry.dtype)).reshape(entry.shape)


def torch_view(data: Any, entry: TensorEntry) -> Tensor:
    """An entry's elements in place, as a tensor of torch's; `data` is an array or such a tensor.
    torch has no read-only tensors: writing to one over read-only memory ends the process."""
    import torch

    dtype = getattr(torch, torch_name(entry.dtype))
    if is_torch(data):
        part: Tensor = data[entry.offset : entry.offset + entry.bytes]
        return part.view(dtype).view(entry.shape)
    if not entry.bytes:
        return torch.empty(entry.shape, dtype=dtype)
    address = data.__array_interface__["data"][0] + entry.offset
    memory: Any = (ctypes.c_uint8 * entry.bytes).from_address(address)
    memory.owner = data  # a tensor keeps its buffer, the buffer the mapping
    return torch.frombuffer(memory, dtype=dtype).view(entry.shape)


def store(tensor: Any, data: Any, entry: TensorEntry) -> None:
    """Copies a tensor of any kind to an entry's place, cast to its type."""
    if is_torch(tensor) or is_torch(data) or not _fits(tensor.dtype, entry.dtype):
        import torch

        plain = tensor if is_torch(tensor) else torch.from_numpy(np.array(tensor, order="C"))
        source = plain.detach().reshape(entry.shape)
        torch_view(data, entry).copy_(source)
    else:
        numpy_view(data, entry)[...] = tensor


def holds(tensor: Any, data: Any, entry: TensorEntry) -> bool:
    """Whether an entry's place holds what `store` would put there."""
    stored = np.empty(entry.bytes, np.uint8)
    store(tensor, stored, replace(entry, offset=0))
    return np.array_equal(stored, bytes_of(data, entry))


def bytes_of(data: Any, entry: TensorEntry) -> NDArray[np.uint8]:
    part = data[entry.offset : entry.offset + entry.bytes]
    found: NDArray[np.uint8] = part.cpu().numpy() if is_torch(part) else part
    return found


def share_memory(one: Any, other: Any) -> bool:
    """Whether two tensors have a byte in common; also where that takes too long to tell."""
    places = {str(getattr(tensor, "device", "cpu")) for tensor in (one, other)}
    try:
        return len(places) == 1 and np.shares_memory(_bare(one), _bare(other), max_work=_MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def reach_of(tensor: Any) -> tuple[int, int]:
    """The first byte of a tensor that is not empty, and the first one after it."""
    bare = _bare(tensor)
    low = high = bare.__array_interface__["data"][0]
    for size, stride in zip(bare.shape, bare.strides, strict=True):
        low, high = low + min(0, stride * (size - 1)), high + max(0, stride * (size - 1))
    return low, high + bare.itemsize


def _bare(tensor: Any) -> NDArray[Any]:
    """An array of the same places in memory, which must not be read: it may be a device's."""
    if not is_torch(tensor):
        return np.asarray(tensor)
    size = tensor.element_size()
    interface = {
        "version": 3,
        "data": (tensor.data_ptr(), True),
        "shape": tuple(tensor.shape),
        "typestr": f"|V{size}",
        "strides": tuple(stride * size for stride in tensor.stride()),
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))


def load(data: Any, entry: TensorEntry, tensor: Any, part: tuple[slice, ...]) -> None:
    """Copies `part` of an entry into a tensor of any kind and of its shape, cast to its type."""
    if is_torch(tensor):
        tensor.detach().copy_(torch_view(data, entry)[part])
    elif is_torch(data):
        alone = replace(entry, offset=0, shard=None)
        load(bytes_of(data, entry), alone, tensor, part)
    elif _fits(tensor.dtype, entry.dtype):
        tensor[...] = numpy_view(data, entry)[part]
    else:
        import torch

        code = code_of(tensor.dtype)
        cast = torch_view(data, entry)[part].to(getattr(torch, torch_name(code)))
        bits, flat = numpy_dtype(code), cast.reshape(-1).view(torch.uint8).numpy()
        tensor.view(bits)[...] = flat.view(bits).reshape(tensor.shape)


def part_of(
    entry: TensorEntry, wanted: Shard | None, shape: tuple[int, ...]
) -> tuple[slice, ...] | None:
    """The part of an entry that lies at `wanted` of the whole; None where it does not hold all."""
    has = entry.shard or Shard((0,) * len(entry.shape), entry.shape)
    wants = wanted or Shard((0,) * len(shape), shape)
    if has.global_shape != wants.global_shape:
        return None
    part = []
    for at, size, begin, length in zip(has.offset, entry.shape, wants.offset, shape, strict=True):
        if not at <= begin <= begin + length <= at + size:
            return None
        part.append(slice(begin - at, begin - at + length))
    return tuple(part)


def _start_of(tensor: Any) -> int:
    """The address of a tensor of torch's; 0 where its memory is not just its elements, in order."""
    plain = tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj())
    return int(tensor.data_ptr()) if plain else 0


def _fits(dtype: np.dtype[Any], code: str) -> bool:
    return dtype == numpy_dtype(code) or dtype.name == torch_name(code)
