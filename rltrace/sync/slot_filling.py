"""Copies a learner's tensors into a slot: cast, and hashed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rltrace.sync.device.device_copies import PIECE_BYTES, FarSide
from rltrace.sync.memory import tensors
from rltrace.sync.memory.block_digests import BLOCK_BYTES, Digests, block_range, digest, digest_at
from rltrace.sync.memory.copying import TensorPieces, Workers, copier, hashing_copier
from rltrace.sync.memory.dtypes import FLOATS, ITEM_BYTES, code_of, torch_name
from rltrace.sync.memory.layout import (
    Layout,
    Shard,
    TensorEntry,
    check_tensor,
    held,
    memory_of,
    named_tensors,
)
from rltrace.sync.memory.locks import or_else
from rltrace.trace.errors import RltraceError, WrongUsage

if TYPE_CHECKING:
    from rltrace.sync.device.device_memory import Cuda

_Casts = dict[int, tuple[Any, Any]]  # by number of the entry: its place, and what is cast to it


class Filler:
    def __init__(self, layout: Layout, hashing: bool = True) -> None:
        self.layout, self.hashing = layout, hashing
        self.pieces = TensorPieces(layout)
        self.copy_bytes, self.copy_hashed = copier(layout.bytes), hashing_copier(layout.bytes)
        self.matcher, self.reach = tensors.Matcher(layout), FarSide(layout)

    def fill(
        self, weights: Any, data: Any, digests: Digests, workers: Workers, *after: Any
    ) -> None:
        """Copies tensors to their places in `data`; a device's after its work so far, and `after`.
        Errors: `RltraceError` that names one that does not fit; what an iterable raises."""
        given, filling = held(weights), _Filling(self, data, digests, workers)
        if isinstance(given, dict):
            filling.take(given, after)
        else:
            with or_else(lambda: filling.device and filling.device.now().synchronize()):
                filling.take_stream(given)

    def close(self) -> None:
        self.reach.close()


class _Filling:
    """One version on its way into a slot. By number of the entry: the address that its tensor is
    copied from, here or on the copying device (0: nowhere there), and the tensor."""

    def __init__(self, filler: Filler, data: Any, digests: Digests, workers: Workers) -> None:
        layout, size = filler.layout, len(filler.layout.entries)
        self._by, self._entries, self._numbers = filler, layout.entries, layout.numbers
        self._data, self._digests, self._workers = data, digests, workers
        self._on_device = tensors.is_torch(data)
        self._addresses, self._far = [0] * size, [0] * size
        self._first: list[Any] = [None] * size
        self.device: Cuda | None = None  # from which tensors of a stream come
        self._taken_bytes, self._blocks = 0, list[int]()
        self._waiting: list[tuple[Any, list[int]]] = []

    def take(self, given: dict[str, Any], after: Sequence[Any]) -> None:
        first, far = self._first, self._far
        tied: list[tuple[str, int, Any]] = []
        casts: _Casts = {}
        odd: set[int] = set()
        for name, tensor in self._by.matcher.match(given, self._addresses, first, far):
            number = self._number(name)
            check_tensor(name, tensor)
            if first[number] is not None:
                tied.append((name, number, tensor))
                continue
            first[number] = tensor
            self._look_at(name, number, tensor, None, None if self._on_device else casts)
            if far[number]:
                odd.add(number)
        self._all_there()
        if self._on_device:
            self._copy_on_device(odd, after)
        else:
            self._copy_blocks(casts, after)
        for name, number, tensor in tied:
            if memory_of(tensor) != memory_of(first[number]):
                self._still_tied(name, number, tensor, None)

    def _look_at(
        self, name: str, number: int, tensor: Any, shard: Shard | None, casts: _Casts | None
    ) -> None:
        """Finds where a tensor is copied from; another is stored at once, or is one of `casts`."""
        entry, data = self._entries[number], self._data
        _check(name, entry, tensor, shard)
        if not entry.bytes:
            return
        address = tensors.far_address_of(tensor)
        if address and (not self._on_device or self._by.reach.device_of(data).owns(tensor)):
            self._far[number] = address
            return
        self._addresses[number] = tensors.address_of(tensor, entry.dtype)
        if self._addresses[number]:
            return
        code = code_of(tensor.dtype) if tensors.is_torch(tensor) else ""
        if casts is not None and code and tensors.address_of(tensor, code):
            casts[number] = tensors.torch_view(data, entry).view(-1), tensor.detach().view(-1)
        else:
            tensors.store(tensor, data, entry)

    def _copy_on_device(self, odd: set[int], after: Sequence[Any]) -> None:
        within = self._by.reach.within(self._data)
        device = within.device
        with device.queue(*after, device.now()):
            left = within.copy(self._data, self._first, self._far, odd, to_slot=True)
            left += np.flatnonzero(self._addresses).tolist()  # of the host
            for number in left:
                tensors.store(self._first[number], self._data, self._entries[number])
            if self._by.hashing:
                self._digests[:] = device.digests(self._data)

    def _copy_blocks(self, casts: _Casts, after: Sequence[Any]) -> None:
        data, digests = self._data, self._digests
        crossing, left = self._by.reach.begin(data, None, self._far, self._first, False, *after)
        for number in left:
            tensors.store(self._first[number], data, self._entries[number])
        pieces, hashing, view, total = self._by.pieces, self._by.hashing, data.data, len(data)
        here = pieces.offset + data.ctypes.data
        there = pieces.lie_at(np.array(self._addresses, np.int64))
        copy_bytes, copy_hashed = self._by.copy_bytes, self._by.copy_hashed
        is_near = bool(there.any())

        def copy(block: int) -> None:
            begin, end = pieces.first[block], pieces.first[block + 1]
            if end - begin == 1 and there.item(begin):
                way = here.item(begin), there.item(begin), pieces.length.item(begin)
                if hashing:
                    digests[block] = copy_hashed(*way)
                else:
                    copy_bytes(*way)
                return
            if is_near:
                pieces.copy(block, here, there, read_next=hashing)
            for piece in range(begin, end) if casts else ():
                number = pieces.entry.item(piece)
                if number in casts:
                    to, source = casts[number]
                    size = ITEM_BYTES[self._entries[number].dtype]
                    start = pieces.start.item(piece) // size
                    part = slice(start, start + pieces.length.item(piece) // size)
                    to[part].copy_(source[part])
            if hashing:
                start, stop = block_range(block, total)
                if crossing is not None:
                    crossing.wait(stop)
                digests[block] = digest(view[start:stop])

        try:
            if hashing or is_near or casts:
                self._workers.each(range(len(pieces.first) - 1), copy)
        finally:
            if crossing is not None:
                crossing.finish()

    def take_stream(self, given: Any) -> None:
        """Hashes a block when its last byte is in. A device copies in the order of its own work
        there, as tensors may be gathered into one place time and again."""
        data, hashing, seen, pieces = self._data, self._by.hashing, self._first, self._by.pieces
        base = 0 if self._on_device else data.ctypes.data
        ranges = (block_range(block, len(data)) for block in range(len(pieces.first) - 1))
        missing = [end - start for start, end in ranges]
        names: set[str] = set()
        for name, tensor, shard in named_tensors(given):
            number = self._number(name)
            entry = self._entries[number]
            if name in names:
                raise _refused(f"two tensors are called {name}")
            names.add(name)
            if seen[number]:
                self._finish()
                self._still_tied(name, number, tensor, shard)
                continue
            if shard or self._by.matcher.match({name: tensor}, self._addresses, seen, self._far):
                self._look_at(name, number, tensor, shard, None)
            seen[number] = True  # not the tensor, which need not live on
            if self._far[number] and entry.bytes:
                self._take_from_device(tensor, entry)
            elif address := self._addresses[number]:
                if self._on_device:
                    tensors.store(tensor, data, entry)
                else:
                    self._by.copy_bytes(base + entry.offset, address, entry.bytes)
            for piece in range(*np.searchsorted(pieces.entry, (number, number + 1))):
                block = pieces.offset.item(piece) // BLOCK_BYTES
                missing[block] -= pieces.length.item(piece)
                if missing[block] or not hashing or self._on_device:
                    continue
                if self.device is None:
                    self._hash(block)
                else:
                    self._blocks.append(block)  # of which all is in, or on its way
        self._all_there()
        self._finish()
        if self._on_device:
            device = self._by.reach.device_of(data)
            with device.queue(device.now()):
                if hashing:
                    self._digests[:] = device.digests(data)

    def _take_from_device(self, tensor: Any, entry: TensorEntry) -> None:
        """Copies in the order of the caller's work on the device; hashing follows behind."""
        device = self._by.reach.device_at_hand(tensor)
        if device is None:
            tensors.store(tensor, self._data, entry)
            return
        self.device = device
        if not self._on_device:
            device.pinned(self._data, None)
        device.take(tensors.torch_view(self._data, entry), tensor.detach().reshape(entry.shape))
        self._taken_bytes += entry.bytes
        if self._taken_bytes >= PIECE_BYTES:
            self._waiting.append((device.now(), self._blocks))
            self._taken_bytes, self._blocks = 0, []
            if len(self._waiting) > 1:
                self._hash_after(*self._waiting.pop(0))

    def _finish(self) -> None:
        if self.device is not None:
            waiting = [*self._waiting, (self.device.now(), self._blocks)]
            self._waiting, self._blocks = [], []
            for event, blocks in waiting:
                self._hash_after(event, blocks)

    def _hash_after(self, event: Any, blocks: list[int]) -> None:
        event.synchronize()
        self._workers.each(blocks, self._hash)

    def _hash(self, block: int) -> None:
        self._digests[block] = digest_at(self._data, block)

    def _number(self, name: Any) -> int:
        number = self._numbers.get(name)
        if number is None:
            raise _refused(f"{name} is not in the layout that was opened")
        return number

    def _still_tied(self, name: str, number: int, tensor: Any, shard: Shard | None) -> None:
        """Errors: `RltraceError` where a tensor is not, bit for bit, its tied one."""
        entry = self._entries[number]
        _check(name, entry, tensor, shard)
        if not tensors.holds(tensor, self._data, entry):
            tied = {name, *(n for n, other in self._numbers.items() if other == number)}
            raise _refused(f"{' and '.join(sorted(tied))} are no longer tied")

    def _all_there(self) -> None:
        found = zip(self._entries, self._first, strict=True)
        lacking = [entry.name for entry, tensor in found if tensor is None]
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            raise _refused(f"{lacking[0]}{more} of the layout is not among the weights")


def _check(name: str, entry: TensorEntry, tensor: Any, shard: Shard | None) -> None:
    """Errors: `RltraceError` where a tensor cannot be stored as this entry."""
    shape, opened = list(tensor.shape), "in the layout that was opened"
    if tuple(shape) != entry.shape:
        raise _refused(f"{name} has shape {shape}, but {list(entry.shape)} {opened}")
    if shard != entry.shard:
        raise _refused(f"{name} is another part of its whole than {opened}")
    if tensors.address_of(tensor, entry.dtype):
        return
    if why := tensors.lies_elsewhere(tensor):
        raise _refused(f"{name} {why}")
    code = code_of(tensor.dtype)
    if code != entry.dtype and not {code, entry.dtype} <= FLOATS:
        raise _refused(f"{name} is {torch_name(code)}, but {torch_name(entry.dtype)} {opened}")


def _refused(why: str) -> RltraceError:
    return WrongUsage(f"these weights were not published: {why}")
