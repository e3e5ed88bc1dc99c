"""From a learner's tensors into a slot: cast where the layout says so, hashed on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.blocks import BLOCK_BYTES, Digests, block_count, block_range, digest
from rltrace.sync.copying import Workers, copier, hashing_copier, pieces_of
from rltrace.sync.dtypes import FLOATS, ITEM_BYTES, code_of, torch_name
from rltrace.sync.layout import Entry, Layout, Shard, memory_of, named_tensors
from rltrace.sync.tensors import address_of, is_torch, lies_elsewhere, store, torch_view
from rltrace.trace.errors import WRONG_USAGE, RltraceError


class Filler:
    """Fills slots of one layout; what can be worked out before is, once."""

    def __init__(self, layout: Layout, hashing: bool = True) -> None:
        self.layout = layout
        self.hashing = hashing
        self._pieces = pieces_of(layout)
        self._copy_bytes = copier(layout.bytes)
        self._copy_hashed = hashing_copier(layout.bytes)
        self._numbers = {entry.name: n for n, entry in enumerate(layout.entries)}
        self._tied = dict(layout.aliases)

    def fill(
        self, weights: Any, data: NDArray[np.uint8], digests: Digests, workers: Workers
    ) -> None:
        """Copies every tensor of a model or mapping to its place; of an iterable, one after the
        other as it yields them, so that no more than one need exist at a time.

        Errors: `RltraceError` that names a tensor that is missing, unknown, of another shape or
        type, or (of a model or mapping) no longer tied; whatever the iterable raises. What the slot
        holds then is nothing.
        """
        if hasattr(weights, "state_dict") or isinstance(weights, Mapping):
            tensors = {name: (tensor, shard) for name, tensor, shard in named_tensors(weights)}
            self._still_tied(tensors)
            found = ((name, tensor, shard) for name, (tensor, shard) in tensors.items())
            self._fill_all(dict(self._checked(found)), data, digests, workers)
        else:
            self._fill_stream(named_tensors(weights), data, digests)

    def _fill_all(
        self,
        tensors: Mapping[int, Any],
        data: NDArray[np.uint8],
        digests: Digests,
        workers: Workers,
    ) -> None:
        self._all_there(tensors)
        addresses = [0] * len(self._numbers)
        casts: dict[int, tuple[Any, Any]] = {}
        for number, tensor in tensors.items():
            entry = self.layout.entries[number]
            addresses[number] = address_of(tensor, entry.dtype)
            if addresses[number] or not entry.bytes:
                continue
            if is_torch(tensor) and tensor.device.type == "cpu" and tensor.is_contiguous():
                casts[number] = torch_view(data, entry).view(-1), tensor.detach().view(-1)
            else:
                store(tensor, data, entry)
        base, view, total = _base(data), data.data, len(data)
        copy_bytes, copy_hashed, hashing = self._copy_bytes, self._copy_hashed, self.hashing

        def copy(block: int) -> None:
            pieces = self._pieces[block]
            if len(pieces) == 1 and addresses[pieces[0].entry]:
                number, start, offset, length = pieces[0]
                if hashing:
                    digests[block] = copy_hashed(base + offset, addresses[number] + start, length)
                else:
                    copy_bytes(base + offset, addresses[number] + start, length)
                return
            for number, start, offset, length in pieces:
                address = addresses[number]
                if address:
                    copy_bytes(base + offset, address + start, length)
                elif number in casts:
                    to, source = casts[number]
                    size = ITEM_BYTES[self.layout.entries[number].dtype]
                    part = slice(start // size, (start + length) // size)
                    to[part].copy_(source[part])
            if hashing:
                start, end = block_range(block, total)
                digests[block] = digest(view[start:end])

        workers.each(len(self._pieces), copy)

    def _fill_stream(
        self,
        tensors: Iterable[tuple[str, Any, Shard | None]],
        data: NDArray[np.uint8],
        digests: Digests,
    ) -> None:
        """A block is hashed when its last byte is in."""
        total, view, base = len(data), data.data, _base(data)
        ranges = [block_range(block, total) for block in range(len(self._pieces))]
        missing = [end - start for start, end in ranges]
        seen: dict[int, None] = {}
        for number, tensor in self._checked(tensors):
            seen[number] = None
            entry = self.layout.entries[number]
            address = address_of(tensor, entry.dtype)
            if address:
                self._copy_bytes(base + entry.offset, address, entry.bytes)
            else:
                store(tensor, data, entry)
            first = entry.offset // BLOCK_BYTES
            for block in range(first, block_count(entry.offset + entry.bytes)):
                start, end = ranges[block]
                begins, ends = max(entry.offset, start), min(entry.offset + entry.bytes, end)
                missing[block] -= ends - begins
                if not missing[block] and self.hashing:
                    digests[block] = digest(view[start:end])
        self._all_there(seen)

    def _checked(
        self, tensors: Iterable[tuple[str, Any, Shard | None]]
    ) -> Iterator[tuple[int, Any]]:
        """Those to copy, by entry number: a tied name's tensor is, under the name that it is tied
        to."""
        seen: set[int] = set()
        for name, tensor, shard in tensors:
            if name in self._tied:
                continue
            number = self._numbers.get(name)
            if number is None:
                raise _refused(f"{name} is not in the layout that was opened")
            if number in seen:
                raise _refused(f"two tensors are called {name}")
            seen.add(number)
            _check(self.layout.entries[number], tensor, shard)
            yield number, tensor

    def _still_tied(self, tensors: Mapping[str, tuple[Any, Shard | None]]) -> None:
        for alias, name in self._tied.items():
            if alias in tensors and name in tensors:
                one, other = tensors[alias][0], tensors[name][0]
                if one is not other and memory_of(one) != memory_of(other):
                    raise _refused(f"{alias} is no longer tied to {name}")

    def _all_there(self, seen: Mapping[int, Any]) -> None:
        lacking = [e.name for n, e in enumerate(self.layout.entries) if n not in seen]
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            raise _refused(f"{lacking[0]}{more} of the layout is not among the weights")


def _check(entry: Entry, tensor: Any, shard: Shard | None) -> None:
    """Errors: `RltraceError` where a tensor cannot be stored as this entry."""
    shape, opened = list(tensor.shape), "in the layout that was opened"
    if tuple(shape) != entry.shape:
        raise _refused(f"{entry.name} has shape {shape}, but {list(entry.shape)} {opened}")
    if shard != entry.shard:
        raise _refused(f"{entry.name} is another part of its whole than {opened}")
    if address_of(tensor, entry.dtype):
        return
    if why := lies_elsewhere(tensor):
        raise _refused(f"{entry.name} {why}")
    code = code_of(tensor.dtype)
    if code != entry.dtype and not {code, entry.dtype} <= FLOATS:
        raise _refused(
            f"{entry.name} is {torch_name(code)}, but {torch_name(entry.dtype)} {opened}"
        )


def _refused(why: str) -> RltraceError:
    return RltraceError(f"these weights were not published: {why}", WRONG_USAGE)


def _base(data: NDArray[np.uint8]) -> int:
    return int(data.__array_interface__["data"][0])
