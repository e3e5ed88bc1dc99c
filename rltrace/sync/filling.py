"""From a learner's tensors into a slot: cast where the layout says so, hashed on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.blocks import BLOCK_BYTES, Digests, block_count, block_range, digest
from rltrace.sync.copying import Addresses, Pieces, Workers, copier, hashing_copier
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
    holds,
    is_torch,
    lies_elsewhere,
    store,
    torch_view,
)
from rltrace.trace.errors import RltraceError, WrongUsage


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

    def fill(
        self, weights: Any, data: NDArray[np.uint8], digests: Digests, workers: Workers
    ) -> None:
        """Copies every tensor of a model or dict to its place; of an iterable, one after the other
        as it yields them, so that no more than one need exist at a time.

        Errors: `RltraceError` that names a tensor that is missing, unknown, of another shape or
        type, or no longer equal to the one that it was tied to; whatever the iterable raises. What
        the slot holds then is nothing.
        """
        given = held(weights)
        if not isinstance(given, dict):
            self._fill_stream(given, data, digests)
            return
        size = len(self.layout.entries)
        addresses, first = [0] * size, list[Any]([None] * size)
        tied: list[tuple[str, int, Any]] = []
        casts: dict[int, tuple[Any, Any]] = {}
        for name, tensor in self._matcher.match(given, addresses, first):
            number = self._number(name)
            check_tensor(name, tensor)
            if first[number] is not None:
                tied.append((name, number, tensor))
                continue
            first[number] = tensor
            addresses[number] = self._slow_address(name, number, tensor, None, data, casts)
        self._all_there(first)
        self._fill_blocks(np.array(addresses, np.int64), casts, data, digests, workers)
        for name, number, tensor in tied:
            if memory_of(tensor) != memory_of(first[number]):
                self._still_tied(name, number, tensor, None, data)

    def _slow_address(
        self,
        name: str,
        number: int,
        tensor: Any,
        shard: Shard | None,
        data: NDArray[np.uint8],
        casts: dict[int, tuple[Any, Any]] | None,
    ) -> int:
        """Where a tensor is copied from; 0 where it is stored already, or is one of `casts`."""
        entry = self.layout.entries[number]
        _check(name, entry, tensor, shard)
        address = address_of(tensor, entry.dtype)
        if address or not entry.bytes:
            return address
        is_here = is_torch(tensor) and tensor.device.type == "cpu" and tensor.is_contiguous()
        if casts is not None and is_here and not (tensor.is_neg() or tensor.is_conj()):
            casts[number] = torch_view(data, entry).view(-1), tensor.detach().view(-1)
        else:
            store(tensor, data, entry)
        return 0

    def _fill_blocks(
        self,
        addresses: Addresses,
        casts: Mapping[int, tuple[Any, Any]],
        data: NDArray[np.uint8],
        digests: Digests,
        workers: Workers,
    ) -> None:
        pieces, hashing, view, total = self._pieces, self.hashing, data.data, len(data)
        here, there = pieces.offset + data.ctypes.data, pieces.lie_at(addresses)
        copy_bytes, copy_hashed = self._copy_bytes, self._copy_hashed

        def copy(block: int) -> None:
            begin, end = pieces.first[block], pieces.first[block + 1]
            if end - begin == 1 and there.item(begin):
                way = here.item(begin), there.item(begin), pieces.length.item(begin)
                if hashing:
                    digests[block] = copy_hashed(*way)
                else:
                    copy_bytes(*way)
                return
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
                digests[block] = digest(view[start:stop])

        workers.each(range(len(pieces.first) - 1), copy)

    def _fill_stream(self, given: Any, data: NDArray[np.uint8], digests: Digests) -> None:
        """A block is hashed when its last byte is in."""
        total, view, base = len(data), data.data, data.ctypes.data
        ranges = [block_range(block, total) for block in range(len(self._pieces.first) - 1)]
        missing = [end - start for start, end in ranges]
        names: set[str] = set()
        size = len(self.layout.entries)
        addresses, seen = [0] * size, list[Any]([None] * size)
        for name, tensor, shard in named_tensors(given):
            number = self._number(name)
            entry = self.layout.entries[number]
            if name in names:
                raise _refused(f"two tensors are called {name}")
            names.add(name)
            if seen[number]:
                self._still_tied(name, number, tensor, shard, data)
                continue
            if shard or self._matcher.match({name: tensor}, addresses, seen):
                addresses[number] = self._slow_address(name, number, tensor, shard, data, None)
            seen[number] = True  # not the tensor, which need not live on
            if address := addresses[number]:
                self._copy_bytes(base + entry.offset, address, entry.bytes)
            first = entry.offset // BLOCK_BYTES
            for block in range(first, block_count(entry.offset + entry.bytes)):
                start, end = ranges[block]
                begins, ends = max(entry.offset, start), min(entry.offset + entry.bytes, end)
                missing[block] -= ends - begins
                if not missing[block] and self.hashing:
                    digests[block] = digest(view[start:end])
        self._all_there(seen)

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
