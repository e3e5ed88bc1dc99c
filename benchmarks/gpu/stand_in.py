"""Host memory in the place of a device's: all of device.py's logic can be tried without one.

Like a device's, its memory can be opened while its owner lives and stays as long as somebody has it
open; and its copies are made later, by a thread, so that whoever forgets to wait for them is found
out. `RLTRACE_SYNC_DEVICE=benchmarks.gpu.stand_in` has it take the device's place, for tests:
tensors of the host then count as the device's.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from rltrace.testing.inside.sync import DeviceMemory, block_count, copy_bytes
from rltrace.testing.inside.sync import device_memory_block_digests as block_digests
from rltrace.testing.inside.trace import RltraceError

if TYPE_CHECKING:
    from torch import Tensor

    from rltrace.sync.memory.block_digests import Digests


class StandIn:
    """Host memory in the place of a device's."""

    name = "stand-in"
    is_alone = True

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rltrace.sync stand-in")
        finalize(self, self._pool.shutdown, wait=False)
        self._pending: list[Future[None]] = []

    def owns(self, tensor: Any) -> bool:
        return True

    def allocate(self, size: int) -> DeviceMemory:
        fd = os.memfd_create("rltrace-device")
        os.ftruncate(fd, max(size, 1))
        handle = f"{os.getpid()} {fd} {os.fstat(fd).st_ino}".encode()
        return DeviceMemory(_mapped(fd, size, lambda: None), handle, lambda: os.close(fd))

    def open(self, handle: bytes, size: int, let_go: Callable[[], None]) -> Tensor:
        pid, number, inode = handle.decode().split()
        try:
            fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:  # of another process, it ends with it as a device's does
            raise RltraceError(f"its memory cannot be opened: {error.strerror}") from error
        try:
            if str(os.fstat(fd).st_ino) != inode:
                raise RltraceError("its memory cannot be opened: another process has its number")
            return _mapped(fd, size, let_go)
        finally:
            os.close(fd)

    def free_bytes(self) -> int:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def pinned(self, data: NDArray[np.uint8], path: Path | None) -> int:
        return data.ctypes.data

    def now(self) -> Any:
        return self.mark()

    @contextmanager
    def queue(self, *after: Any) -> Iterator[None]:
        try:
            yield
        finally:
            pending, self._pending = self._pending, []
            for copied in pending:
                copied.exception()
        for copied in pending:
            copied.result()

    def move(self, to: int, source: int, size: int) -> None:
        self._later(lambda: copy_bytes(to, source, size))

    def copy(self, to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
        import torch

        def copy_all() -> None:
            with torch.inference_mode():
                for one, other in zip(to, source, strict=True):
                    one.copy_(other)

        self._later(copy_all)

    def take(self, to: Tensor, source: Tensor) -> None:
        to.copy_(source)

    def mark(self, again: Any = None) -> _Mark:
        return _Mark(self._pool.submit(lambda: None))

    def digests(self, data: Tensor) -> Digests:
        import torch

        found = torch.zeros(block_count(len(data)), dtype=torch.int64)
        self._later(lambda: block_digests(data, found))
        self._pending[-1].result()
        told: Digests = found.numpy().view(np.uint64)
        return told

    def _later(self, do: Callable[[], None]) -> None:
        self._pending.append(self._pool.submit(do))


class _Mark:
    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def synchronize(self) -> None:
        self._future.result()


def _mapped(fd: int, size: int, let_go: Callable[[], None]) -> Tensor:
    import torch

    if not size:
        return torch.empty(0, dtype=torch.uint8)
    whole = mmap.mmap(fd, size)
    memory: Any = (ctypes.c_uint8 * size).from_buffer(whole)
    finalize(memory, let_go).atexit = False
    return torch.frombuffer(memory, dtype=torch.uint8)
