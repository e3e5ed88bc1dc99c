"""A device's memory, copies in a queue of its own, and digests there.

`Cuda` takes its memory from the driver: no other process can open a part of torch's blocks alone.
For tests `RLTRACE_SYNC_DEVICE` names a module whose `StandIn` takes its place. Neither this nor
torch is loaded unless a tensor or a policy lies on a device.

Digests of blocks are of another kind than xxh3, as the host does not read them. With all arithmetic
modulo 2**64, word i (8 bytes, little-endian, the last one filled up with zeros) of a block is mixed
with its place, and the sum over the block is its digest:

    z = word ^ (i + 1) * KEY;  z = (z ^ z >> 32) * MIX;  z = (z ^ z >> 32) * MIX_AGAIN

Each step can be undone, so a block in which one word differs has another digest; words in each
other's places differ by their keys; a sum takes any order, so no thread waits. It is for damage and
torn copies, not against an attacker. The constants are odd: the multipliers of Knuth's MMIX
generator, of xorshift64* (Vigna) and one of L'Ecuyer's table for 2**64.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.memory.block_digests import BLOCK_BYTES, Digests, block_count
from rltrace.sync.memory.kernel import Handle, typed
from rltrace.sync.memory.policy_memory import no_room
from rltrace.sync.memory.tensors import stand_in
from rltrace.trace.errors import CANNOT_TELL, RltraceError, WrongUsage
from rltrace.trace.job_exceptions import from_outside

if TYPE_CHECKING:
    from torch import Tensor

_UNIT_BYTES = 2 << 20  # what the driver maps at a time: smaller pieces would share one
_ANY_WAY, _LAZY_PEERS, _PORTABLE, _READ_ONLY = 4, 1, 1, 8  # of the CUDA runtime's interface
KEY, MIX, MIX_AGAIN = 0x5851F42D4C957F2D, 0x2545F4914F6CDD1D, 0x369DEA0F31A53F85
WORDS = BLOCK_BYTES // 8
_log = logging.getLogger("rltrace.sync")
_LOW = 0xFFFFFFFF
_STEP = 2048
_STRIDE = _STEP * KEY % (1 << 64)
_BLOCKS_AT_ONCE = 64  # by torch: its temporaries take three times their bytes
_own: dict[bytes, int] = {}
_pinned: dict[int, int] = {}


@dataclass
class DeviceMemory:
    """Device memory of this process (uint8, zeros at first), with the handle for others."""

    data: Tensor
    handle: bytes
    free: Callable[[], None]


def device_of(tensor: Any) -> Cuda:
    return _stand_in() or Cuda(tensor.get_device())


def current_device() -> Cuda:
    """torch's current one. Errors: `RltraceError` where there is none."""
    return _stand_in() or Cuda(_torch_with_cuda().cuda.current_device())


def _stand_in() -> Cuda | None:
    made: Cuda | None = import_module(stand_in()).StandIn() if stand_in() else None
    return made


def device_named(name: str) -> Cuda:
    """Errors: `RltraceError` where this process does not see it."""
    if (instead := _stand_in()) is not None:
        return instead
    torch = _torch_with_cuda()
    for index in range(torch.cuda.device_count()):
        if _uuid(torch, index) == name:
            return Cuda(index)
    raise WrongUsage(f"the weights lie on {name}, which this process does not see")


class Cuda:
    """A GPU with a stream of its own, for one thread but for `mark`. `name` is the same in every
    process; `is_alone`: it is the only one. Errors: `RltraceError` where it cannot be used here."""

    def __init__(self, index: int) -> None:
        self._torch = _torch_with_cuda()
        _runtime()
        self._index = index
        self._stream = self._torch.cuda.Stream(index)
        self._done = self._event()
        self._found: Tensor | None = None
        self.name = _uuid(self._torch, index)
        self.is_alone = self._torch.cuda.device_count() == 1

    def owns(self, tensor: Any) -> bool:
        return bool(tensor.get_device() == self._index)

    def allocate(self, size: int) -> DeviceMemory:
        """Errors: `RltraceError` where there is too little, or none that others can open."""
        torch, pointer, handle = self._torch, ctypes.c_void_p(), Handle()
        taken = -(-max(size, 1) // _UNIT_BYTES) * _UNIT_BYTES
        with torch.cuda.device(self._index):
            free = self.free_bytes()
            if taken > free:
                raise no_room(f"on {self.name}", taken, free)
            try:
                _cuda("cudaMalloc", ctypes.byref(pointer), taken)
            except _CudaError as error:
                raise no_room(f"on {self.name}", taken, free) from error
            address = pointer.value or 0
            try:
                _cuda("cudaIpcGetMemHandle", ctypes.byref(handle), pointer)
                data = self._over(_Raw(address, size))
                data.zero_()
                torch.cuda.synchronize()
            except _CudaError as error:
                _went_well("cudaFree", pointer)
                said = f"memory of {self.name} cannot be opened by other processes here"
                raise RltraceError(f"{said}: {error}", CANNOT_TELL) from error
        key = bytes(handle)
        _own[key] = address

        def free_it() -> None:
            _own.pop(key, None)
            with torch.cuda.device(self._index):
                torch.cuda.synchronize()
                _went_well("cudaFree", pointer)

        return DeviceMemory(data, key, free_it)

    def open(self, handle: bytes, size: int, let_go: Callable[[], None]) -> Tensor:
        """Another's memory, in place; `let_go` ends it. Errors: `RltraceError` where it is gone."""
        pointer, torch = ctypes.c_void_p(), self._torch
        address, index = _own.get(handle, 0), self._index  # the driver opens none of one's own
        if not address:
            with torch.cuda.device(index):
                try:
                    given = Handle.from_buffer_copy(handle)
                    _cuda("cudaIpcOpenMemHandle", ctypes.byref(pointer), given, _LAZY_PEERS)
                except _CudaError as error:
                    raise RltraceError(f"its memory cannot be opened: {error}") from error

        def close() -> None:
            if pointer.value:
                with torch.cuda.device(index):
                    _went_well("cudaIpcCloseMemHandle", pointer)
            let_go()

        raw = _Raw(address or pointer.value or 0, size)
        finalize(raw, close).atexit = False  # the process's end does it
        return self._over(raw)

    def free_bytes(self) -> int:
        return int(self._torch.cuda.mem_get_info(self._index)[0])

    def pinned(self, data: NDArray[np.uint8], path: Path | None) -> int:
        """Page-locks an array's memory until it is gone. `path`: of the file that a read-only one
        maps, from some page on. Returns an address of the same bytes; 0 where it cannot be done."""
        address = data.ctypes.data
        if address not in _pinned:
            finalize(data, _pinned.pop, address, None)
            _pinned[address] = self._pin(data, path)
        return _pinned[address]

    def _pin(self, data: NDArray[np.uint8], path: Path | None) -> int:
        address, size = data.ctypes.data, len(data)
        kind = _PORTABLE if data.flags.writeable else _PORTABLE | _READ_ONLY
        begun, mapped = address, None
        if not size or not self._registers(address, size, kind):
            if path is None or not size:
                return 0
            # Few machines lock pages that may only be read: through a mapping of our own.
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                whole = os.fstat(fd).st_size
                mapped = mmap.mmap(fd, whole)
            finally:
                os.close(fd)
            begun = np.frombuffer(mapped, np.uint8).ctypes.data + whole - size
            if not self._registers(begun, size, _PORTABLE):
                return 0
        finalize(data, self._unpin, begun, mapped)
        return begun

    def _unpin(self, address: int, mapped: object) -> None:  # which stays mapped until then
        _went_well("cudaHostUnregister", ctypes.c_void_p(address))

    def _registers(self, address: int, size: int, kind: int) -> bool:
        with self._torch.cuda.device(self._index):
            return _went_well("cudaHostRegister", ctypes.c_void_p(address), size, kind)

    def now(self) -> Any:
        """Where the caller's work on the device stands: something to give to `queue`."""
        return self._torch.cuda.current_stream(self._index).record_event()

    @contextmanager
    def queue(self, *after: Any) -> Iterator[None]:
        """What is copied within begins after `after`, and is complete at the end in any case."""
        with self._torch.cuda.stream(self._stream):
            for event in after:
                self._stream.wait_event(event)
            try:
                yield
            finally:
                self.mark(self._done).synchronize()

    def move(self, to: int, source: int, size: int) -> None:
        """Queues the copy of bytes between addresses of any kind."""
        _cuda("cudaMemcpyAsync", to, source, size, _ANY_WAY, self._stream.cuda_stream)

    def copy(self, to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
        """Queues the copies of many tensors of one type into as many of one type: few launches."""
        with self._torch.inference_mode():  # they may be parameters, and of an engine
            self._torch._foreach_copy_(list(to), list(source), non_blocking=True)

    def take(self, to: Tensor, source: Tensor) -> None:
        """Copies in the order of the caller's own work, not in the queue: done when `now()` is."""
        to.copy_(source, non_blocking=True)
        source.record_stream(self._torch.cuda.current_stream(self._index))

    def mark(self, again: Any = None) -> Any:
        """Queues an event (one given is used anew): `synchronize()` waits for all before it."""
        event = again or self._event()
        event.record(self._stream)
        return event

    def _event(self) -> Any:
        return self._torch.cuda.Event(blocking=True)  # else a core would spin through the copy

    def digests(self, data: Tensor) -> Digests:
        """The block table of device memory, once all before it is complete."""
        torch, blocks = self._torch, block_count(len(data))
        if self._found is None or len(self._found) != blocks:
            self._found = torch.empty(blocks, dtype=torch.int64, device=data.device)
            self._told = torch.empty(blocks, dtype=torch.int64, pin_memory=True)
        block_digests(data, self._found)
        self._told.copy_(self._found, non_blocking=True)
        self.mark(self._done).synchronize()
        told: Digests = self._told.numpy().view(np.uint64)
        return told

    def _over(self, raw: _Raw) -> Tensor:
        device = f"cuda:{self._index}"
        if not raw.size:
            empty: Tensor = self._torch.empty(0, dtype=self._torch.uint8, device=device)
            return empty
        data: Tensor = self._torch.as_tensor(raw, device=device)
        if data.data_ptr() != raw.address:
            raise RltraceError("torch copies what it is to see in place", CANNOT_TELL)
        return data


class _CudaError(RuntimeError):
    """What the CUDA runtime says to a call that failed."""


class _Raw:
    """Device memory as torch takes it over: a tensor over it keeps this object."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 2,
        }


def _cuda(name: str, *arguments: Any) -> None:
    """Calls the CUDA runtime that torch has loaded. Errors: `_CudaError`."""
    code = getattr(_runtime(), name)(*arguments)
    if code:
        _runtime().cudaGetLastError()  # else torch takes it for an error of its next kernel
        said = _runtime().cudaGetErrorString(code)
        raise _CudaError(f"{name} says {code}, {(said or b'').decode()}")


def _went_well(name: str, *arguments: Any) -> bool:
    """Calls it where it may fail, as memory is let go; whether it did not."""
    failed = bool(getattr(_runtime(), name)(*arguments))
    if failed:
        _runtime().cudaGetLastError()
    return not failed


@cache
def _runtime() -> ctypes.CDLL:
    import torch

    name = f"libcudart.so.{(torch.version.cuda or '').partition('.')[0]}"
    mapped = Path("/proc/self/maps").read_text("utf-8").splitlines()
    known = sorted({line.split(maxsplit=5)[-1] for line in mapped if "/libcudart.so" in line})
    known.sort(key=lambda path: not Path(path).name.startswith(name))
    try:
        library = ctypes.CDLL(known[0] if known else name)
    except OSError as error:
        raise RltraceError(f"the CUDA runtime is not to be found: {error}") from error
    return typed(library, "cudart")


def _torch_with_cuda() -> Any:
    """torch, its GPUs ready. Errors: `RltraceError` where it has none to use."""
    try:
        import torch

        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (ImportError, RuntimeError, AssertionError) as error:
        why = str(error).partition("\n")[0]
        raise WrongUsage(f"weights on a GPU take a torch that can use one here: {why}") from error
    return torch


def _uuid(torch: Any, index: int) -> str:
    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"


def block_digests(data: Tensor, found: Tensor) -> None:
    """Digests of `data` (uint8, whole words) into `found` (int64, one a block), on this stream."""
    import torch

    words = data.view(torch.int64)
    if kernels_run_on(data):
        _digests_by_triton(words, found)
    else:
        _digests_by_torch(words, found)


def kernels_run_on(tensor: Tensor) -> bool:
    return tensor.is_cuda and _has_kernel(tensor.get_device())


def _digests_by_triton(words: Tensor, found: Tensor) -> None:
    from rltrace.sync.device.triton_digests import digest_blocks

    if len(words):
        digest_blocks[(len(found),)](
            *(words, found, len(words), KEY, MIX, MIX_AGAIN, WORDS, _STEP, _STRIDE), num_warps=8
        )


def _digests_by_torch(words: Tensor, found: Tensor) -> None:
    import torch

    keys = torch.arange(1, WORDS + 1, dtype=torch.int64, device=words.device) * KEY
    whole = len(words) // WORDS
    for first in range(0, whole, _BLOCKS_AT_ONCE):
        last = min(first + _BLOCKS_AT_ONCE, whole)
        part = words[first * WORDS : last * WORDS].view(-1, WORDS)
        found[first:last] = _mixed(part, keys).sum(1)
    rest = words[whole * WORDS :]
    if len(rest):
        found[whole] = _mixed(rest, keys[: len(rest)]).sum()


def _mixed(words: Tensor, keys: Tensor) -> Tensor:
    mixed = words ^ keys
    for by in (MIX, MIX_AGAIN):
        mixed = (mixed ^ (mixed >> 32 & _LOW)) * by  # the mask makes the shift one of zeros
    return mixed


@cache
def _has_kernel(index: int) -> bool:
    """Whether the kernel can be compiled for a device (with Triton and a C compiler) and gives
    there what torch does. Otherwise it is said once, and torch's way is taken."""
    import torch

    device = "cpu" if index < 0 else f"cuda:{index}"
    words = torch.arange(2 * WORDS + 1110, device=device) * KEY
    try:
        answers = [torch.zeros(3, dtype=torch.int64, device=device) for _ in range(2)]
        for way, digests in zip((_digests_by_triton, _digests_by_torch), answers, strict=True):
            way(words, digests)
        well, why = torch.equal(*answers), "its answers are not those of torch"
    except Exception as error:  # of any kind: it is another project's
        if from_outside(error):
            raise
        said = str(error).strip().partition("\n")[0]
        well, why = False, f"{type(error).__name__}: {said:.200}"
    if not well:
        _log.warning("Triton's kernel is not used on %s: %s", device, why)
    return well
