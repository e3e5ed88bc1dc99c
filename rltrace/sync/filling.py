"""From a learner's tensors into a slot: cast where the layout says so, hashed on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.blocks import BLOCK_BYTES, Digests, block_count, block_range, digest
from rltrace.sync.copying import Pieces, Workers, copier, hashing_copier
from rltrace.sync.crossing import PIECE_BYTES, FarSide
from rltrace.sync.dtypes import FLOATS, ITEM_BYTES, code_of, torch_name
from rltrace.sync.layout import (
    Entry,
    Layout,
    Shard,
    check_tensor,
    held,
    memory_of,
    named_tensors,
)
from rltrace.sync.tensors import (
    Matcher,
    address_of,
    far_address_of,
    holds,
    is_torch,
    lies_elsewhere,
    store,
    torch_view,
)
from rltrace.trace.errors import RltraceError, WrongUsage

if TYPE_CHECKING:
    from rltrace.sync.device import Cuda


class Filler:
    """Fills slots of one layout; what can be worked out before is, once."""

    def __init__(self, layout: Layout, hashing: bool = True) -> None:
        self.layout = layout
        self.hashing = hashing
        self._pieces = Pieces(layout)
        self._copy_bytes = copier(layout.bytes)
        self._copy_hashed = hashing_copier(layout.bytes)
        self._numbers = layout.numbers
        self._matcher = Matcher(layout)
        self._reach = FarSide(layout)

    def fill(
        self, weights: Any, data: Any, digests: Digests, workers: Workers, *after: Any
    ) -> None:
        """Copies every tensor of a model or dict to its place; of an iterable, one after the other
        as it yields them, so that no more than one need exist at a time. `data` is a slot's, of the
        host or of a device. Tensors of a device are copied after what it has been given to do so
        far, and `after` that.

        Errors: `RltraceError` that names a tensor that is missing, unknown, of another shape or
        type, or no longer equal to the one that it was tied to; whatever the iterable raises. What
        the slot holds then is nothing.
        """
        given = held(weights)
        if not isinstance(given, dict):
            behind = _Behind(data, digests, workers)
            try:
                self._fill_stream(given, data, digests, behind)
            except BaseException:
                behind.drain()
                raise
            return
        size = len(self.layout.entries)
        addresses, far, first = [0] * size, [0] * size, list[Any]([None] * size)
        tied: list[tuple[str, int, Any]] = []
        casts: dict[int, tuple[Any, Any]] | None = None if is_torch(data) else {}
        odd: set[int] = set()
        for name, tensor in self._matcher.match(given, addresses, first, far):
            number = self._number(name)
            check_tensor(name, tensor)
            if first[number] is not None:
                tied.append((name, number, tensor))
                continue
            first[number] = tensor
            self._look_at(name, number, tensor, None, data, addresses, far, casts)
            if far[number]:
                odd.add(number)
        self._all_there(first)
        if is_torch(data):
            self._fill_on_device(addresses, far, odd, first, data, digests, after)
        else:
            self._fill_blocks(addresses, far, first, casts or {}, data, digests, workers, after)
        for name, number, tensor in tied:
            if memory_of(tensor) != memory_of(first[number]):
                self._still_tied(name, number, tensor, None, data)

    def close(self) -> None:
        """Lets go of what it holds of a device."""
        self._reach.close()

    def _look_at(
        self,
        name: str,
        number: int,
        tensor: Any,
        shard: Shard | None,
        data: Any,
        addresses: list[int],
        far: list[int],
        casts: dict[int, tuple[Any, Any]] | None,
    ) -> None:
        """Sets where a tensor is copied from, here or on the device that copies; neither where it
        is stored already, or is one of `casts`."""
        entry = self.layout.entries[number]
        _check(name, entry, tensor, shard)
        if not entry.bytes:
            return
        address = far_address_of(tensor)
        if address and (not is_torch(data) or self._reach.device_of(data).owns(tensor)):
            far[number] = address
            return
        addresses[number] = address_of(tensor, entry.dtype)
        if addresses[number]:
            return
        is_here = is_torch(tensor) and tensor.device.type == "cpu" and tensor.is_contiguous()
        if casts is not None and is_here and not (tensor.is_neg() or tensor.is_conj()):
            casts[number] = torch_view(data, entry).view(-1), tensor.detach().view(-1)
        else:
            store(tensor, data, entry)

    def _fill_on_device(
        self,
        addresses: Sequence[int],
        far: list[int],
        odd: set[int],
        first: Sequence[Any],
        data: Any,
        digests: Digests,
        after: Sequence[Any],
    ) -> None:
        within = self._reach.within(data)
        device = within.device
        with device.queue(*after, device.now()):
            left = within.copy(data, first, far, odd, to_slot=True)
            for number in [*left, *np.flatnonzero(addresses).tolist()]:  # the latter: of the host
                store(first[number], data, self.layout.entries[number])
            if self.hashing:
                digests[:] = device.digests(data)

    def _fill_blocks(
        self,
        addresses: Sequence[int],
        far: list[int],
        first: list[Any],
        casts: Mapping[int, tuple[Any, Any]],
        data: NDArray[np.uint8],
        digests: Digests,
        workers: Workers,
        after: Sequence[Any],
    ) -> None:
        crossing, left = self._reach.begin(data, None, far, first, False, *after)
        for number in left:
            store(first[number], data, self.layout.entries[number])
        pieces, hashing, view, total = self._pieces, self.hashing, data.data, len(data)
        here = pieces.offset + data.ctypes.data
        there = pieces.lie_at(np.array(addresses, np.int64))
        copy_bytes, copy_hashed = self._copy_bytes, self._copy_hashed
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
                    size = ITEM_BYTES[self.layout.entries[number].dtype]
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
                workers.each(range(len(pieces.first) - 1), copy)
        finally:
            if crossing is not None:
                crossing.finish()

    def _fill_stream(self, given: Any, data: Any, digests: Digests, behind: _Behind) -> None:
        """A block is hashed when its last byte is in. What comes from a device is copied in the
        order of its own work there, as it may be gathered into one place time and again."""
        on_device = is_torch(data)
        base = 0 if on_device else data.ctypes.data
        ranges = [block_range(block, len(data)) for block in range(len(self._pieces.first) - 1)]
        missing = [end - start for start, end in ranges]
        names: set[str] = set()
        size = len(self.layout.entries)
        addresses, far, seen = [0] * size, [0] * size, list[Any]([None] * size)
        for name, tensor, shard in named_tensors(given):
            number = self._number(name)
            entry = self.layout.entries[number]
            if name in names:
                raise _refused(f"two tensors are called {name}")
            names.add(name)
            if seen[number]:
                behind.finish()
                self._still_tied(name, number, tensor, shard, data)
                continue
            if shard or self._matcher.match({name: tensor}, addresses, seen, far):
                self._look_at(name, number, tensor, shard, data, addresses, far, None)
            seen[number] = True  # not the tensor, which need not live on
            if far[number] and entry.bytes:
                behind.take(self._reach.device_at_hand(tensor), tensor, entry)
            elif address := addresses[number]:
                if on_device:
                    store(tensor, data, entry)
                else:
                    self._copy_bytes(base + entry.offset, address, entry.bytes)
            first = entry.offset // BLOCK_BYTES
            for block in range(first, block_count(entry.offset + entry.bytes)):
                start, end = ranges[block]
                begins, ends = max(entry.offset, start), min(entry.offset + entry.bytes, end)
                missing[block] -= ends - begins
                if not missing[block] and self.hashing and not on_device:
                    behind.hash(block)
        self._all_there(seen)
        behind.finish()
        if on_device:
            device = self._reach.device_of(data)
            with device.queue(device.now()):
                if self.hashing:
                    digests[:] = device.digests(data)

    def _number(self, name: Any) -> int:
        number = self._numbers.get(name)
        if number is None:
            raise _refused(f"{name} is not in the layout that was opened")
        return number

    def _still_tied(
        self, name: str, number: int, tensor: Any, shard: Shard | None, data: NDArray[np.uint8]
    ) -> None:
        """Errors: `RltraceError` where a tensor is not, bit for bit, what was stored for the one
        that it was tied to."""
        entry = self.layout.entries[number]
        _check(name, entry, tensor, shard)
        if not holds(tensor, data, entry):
            tied = {name, *(n for n, other in self._numbers.items() if other == number)}
            raise _refused(f"{' and '.join(sorted(tied))} are no longer tied")

    def _all_there(self, seen: list[Any]) -> None:
        entries = self.layout.entries
        lacking = [e.name for e, each in zip(entries, seen, strict=True) if each is None]
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            raise _refused(f"{lacking[0]}{more} of the layout is not among the weights")


class _Behind:
    """Copies of a stream's tensors from a device, and the blocks that are hashed behind them."""

    def __init__(self, data: Any, digests: Digests, workers: Workers) -> None:
        self._data, self._digests, self._workers = data, digests, workers
        self._device: Cuda | None = None
        self._bytes = 0
        self._blocks: list[int] = []
        self._waiting: list[tuple[Any, list[int]]] = []

    def take(self, device: Cuda | None, tensor: Any, entry: Entry) -> None:
        """Copies a tensor, in the order of the caller's own work on its device."""
        if device is None:
            store(tensor, self._data, entry)
            return
        self._device = device
        if not is_torch(self._data):
            device.pinned(self._data, None)
        device.take(torch_view(self._data, entry), tensor.detach().reshape(entry.shape))
        self._bytes += entry.bytes
        if self._bytes >= PIECE_BYTES:
            self._bytes = 0
            self._waiting.append((device.now(), self._blocks))
            self._blocks = []
            if len(self._waiting) > 1:
                self._hash(*self._waiting.pop(0))

    def hash(self, block: int) -> None:
        """Takes the digest of a block, of which all is in or on its way."""
        if self._device is None:
            self._hash_one(block)
        else:
            self._blocks.append(block)

    def finish(self) -> None:
        """Until all that was taken is there, and hashed."""
        if self._device is not None:
            waiting, blocks = self._waiting, self._blocks
            self._waiting, self._blocks = [], []
            for event, some in [*waiting, (self._device.now(), blocks)]:
                self._hash(event, some)

    def drain(self) -> None:
        """Until nothing is on its way any more."""
        event = self._device.now() if self._device is not None else None
        if event is not None:
            event.synchronize()

    def _hash(self, event: Any, blocks: list[int]) -> None:
        if event is not None:
            event.synchronize()
        self._workers.each(blocks, self._hash_one)

    def _hash_one(self, block: int) -> None:
        start, end = block_range(block, len(self._data))
        self._digests[block] = digest(self._data.data[start:end])


def _check(name: str, entry: Entry, tensor: Any, shard: Shard | None) -> None:
    """Errors: `RltraceError` where a tensor cannot be stored as this entry."""
    shape, opened = list(tensor.shape), "in the layout that was opened"
    if tuple(shape) != entry.shape:
        raise _refused(f"{name} has shape {shape}, but {list(entry.shape)} {opened}")
    if shard != entry.shard:
        raise _refused(f"{name} is another part of its whole than {opened}")
    if address_of(tensor, entry.dtype):
        return
    if why := lies_elsewhere(tensor):
        raise _refused(f"{name} {why}")
    code = code_of(tensor.dtype)
    if code != entry.dtype and not {code, entry.dtype} <= FLOATS:
        raise _refused(f"{name} is {torch_name(code)}, but {torch_name(entry.dtype)} {opened}")


def _refused(why: str) -> RltraceError:
    return WrongUsage(f"these weights were not published: {why}")
