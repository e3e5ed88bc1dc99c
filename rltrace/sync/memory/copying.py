"""Copies and checks bytes block by block, in several threads.

Copying and hashing release the interpreter's lock, so a second thread brings what the memory can
carry and one core cannot. A thread whose core is busy takes fewer runs of blocks.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.memory.block_digests import BLOCK_BYTES, block_count, digest
from rltrace.sync.memory.kernel import compiled, typed
from rltrace.sync.memory.layout import Layout

_RUN_BLOCKS = 8
_MOST_THREADS = 4
_STREAMED_FROM_BYTES = 64 << 20  # weights of this size fit in no cache
_MANY = 1000  # tensors, from which on a call for each costs more than their bytes
_SHORT_BYTES = 240  # inputs up to this are hashed by other rules, which the kernel does not have
Addresses = NDArray[np.int64]
copy_bytes: Callable[[int, int, int], None] = typed(ctypes.CDLL(None), "libc").memcpy
"""memcpy(to, from, bytes), by addresses."""


def _is_long(total_bytes: int) -> bool:
    return total_bytes >= _STREAMED_FROM_BYTES


def copier(total_bytes: int) -> Callable[[int, int, int], None]:
    """What copies pieces of that much best: `copy_bytes`, or the compiled kernel's twin of it."""
    library = compiled() if _is_long(total_bytes) else None
    return copy_bytes if library is None else library.rltrace_copy


def hashing_copier(total_bytes: int) -> Callable[[int, int, int], int]:
    """As `copier`, of a block to an address that is a multiple of 16; returns its digest."""
    copy_plain = copier(total_bytes)
    library = compiled() if _is_long(total_bytes) else None

    def copy(to: int, source: int, length: int) -> int:
        # Hashed where it comes from: that brings it into the cache that it is copied from.
        found = digest((ctypes.c_uint8 * length).from_address(source))
        copy_plain(to, source, length)
        return found

    if library is None:
        return copy
    copy_at_once: Callable[[int, int, int], int] = library.rltrace_copy_hashed

    def stream(to: int, source: int, length: int) -> int:
        one_pass = length > _SHORT_BYTES and to % 16 == 0
        return copy_at_once(to, source, length) if one_pass else copy(to, source, length)

    return stream


class TensorPieces:
    """The parts of tensors in each block. Piece i is `length[i]` bytes at `offset[i]` of the data,
    from `start[i]` of entry `entry[i]` on; block b has pieces `first[b]` to `first[b + 1]`."""

    def __init__(self, layout: Layout) -> None:
        stored = [(n, e.offset) for n, e in enumerate(layout.entries) if e.bytes]
        numbers, begins = np.array(stored, np.int64).reshape(-1, 2).T
        blocks = np.arange(block_count(layout.bytes)) * BLOCK_BYTES
        self.offset = np.union1d(begins, blocks)
        of = np.searchsorted(begins, self.offset, "right") - 1
        self.entry, self.start = numbers[of], self.offset - begins[of]
        self.length = np.diff(self.offset, append=layout.bytes)
        self.first = [*np.searchsorted(self.offset, blocks).tolist(), len(self.offset)]
        library = compiled() if _is_long(layout.bytes) or len(stored) >= _MANY else None
        self._copy_all = None if library is None else library.rltrace_copy_pieces
        self._is_long = _is_long(layout.bytes)

    def lie_at(self, addresses: Addresses) -> Addresses:
        """Where each piece lies whose tensor lies at an address; 0 where that is 0."""
        found = addresses[self.entry]
        return np.where(found, found + self.start, 0)

    def copy(self, block: int, to: Addresses, source: Addresses, read_next: bool) -> None:
        """Copies a block's pieces that lie on both sides; `read_next`: they stay in the cache."""
        begin, count = self.first[block], self.first[block + 1] - self.first[block]
        if self._copy_all is not None:
            at = [array.ctypes.data + 8 * begin for array in (to, source, self.length)]
            self._copy_all(*at, count, self._is_long and not read_next)
            return
        parts = slice(begin, begin + count)
        ways = (array[parts].tolist() for array in (to, source, self.length))
        for there, here, length in zip(*ways, strict=True):
            if there and here:
                copy_bytes(there, here, length)


def default_threads() -> int:
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)))


class Workers:
    """Threads that go through the blocks of a layout together; the caller is one of them."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or default_threads()
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()

    def each(self, blocks: Sequence[int], do: Callable[[int], None]) -> None:
        """Does it for every block, in no order; raises the first error once all threads stopped."""
        runs = itertools.count()

        def take() -> None:
            while True:
                first = next(runs) * _RUN_BLOCKS
                if first >= len(blocks):
                    return
                for block in blocks[first : first + _RUN_BLOCKS]:
                    do(block)

        helpers = min(self.threads, -(-len(blocks) // _RUN_BLOCKS)) - 1
        if self._pid != os.getpid():  # a forked child has none of its parent's threads
            self._pool, self._pid = None, os.getpid()
        if helpers > 0 and self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads - 1, thread_name_prefix="rltrace.sync")
        pending = [self._pool.submit(take) for _ in range(helpers)] if self._pool else []
        try:
            take()
        finally:
            wait(pending)
        for helper in pending:
            helper.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
