"""From a leased version into a rollout worker's own tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.copying import Workers, copier, pieces_of
from rltrace.sync.dtypes import code_of, torch_name
from rltrace.sync.layout import Entry, Layout, Shard, memory_of, named_tensors
from rltrace.sync.tensors import (
    address_of,
    is_torch,
    lies_elsewhere,
    load,
    overlaps_itself,
    part_of,
)
from rltrace.trace.errors import WRONG_USAGE, RltraceError


class Applier:
    """Copies versions of one layout; what can be worked out before is, once."""

    def __init__(self, layout: Layout, workers: Workers) -> None:
        self.layout = layout
        self._workers = workers
        self._pieces = pieces_of(layout)
        self._copy_bytes = copier(layout.bytes)
        self._numbers = {entry.name: n for n, entry in enumerate(layout.entries)}
        self._numbers |= {alias: self._numbers[name] for alias, name in layout.aliases}

    def plan(self, weights: Any) -> Plan:
        """Where everything goes. `weights` is what `layout_of` takes; a tensor with a `Shard` takes
        that part of what was published whole.

        Errors: `RltraceError` that names a tensor that was not published, has no place here, has
        another shape or type, or not a place in memory for each element; no tensor was touched.
        """
        named = {name: (tensor, shard) for name, tensor, shard in named_tensors(weights)}
        plan = Plan([0] * len(self.layout.entries), [], named)
        filled: dict[int, object] = {}
        for name, (tensor, shard) in named.items():
            number = self._numbers.get(name)
            if number is None:
                raise _refused(f"{name} was not published")
            memory = memory_of(tensor)
            if filled.setdefault(number, memory) == memory and plan.addresses[number]:
                continue  # tied here, too
            self._place(plan, number, name, tensor, shard)
        for number, entry in enumerate(self.layout.entries):
            if number not in filled:
                raise _refused(f"{entry.name} was published, and there is no tensor of that name")
        return plan

    def apply(self, data: NDArray[np.uint8], plan: Plan) -> None:
        """Copies it all. Errors: whatever the copy to a device raises: then a part is copied."""
        base = int(data.__array_interface__["data"][0])
        addresses, copy_bytes = plan.addresses, self._copy_bytes

        def copy(block: int) -> None:
            for number, start, offset, length in self._pieces[block]:
                if addresses[number]:
                    copy_bytes(addresses[number] + start, base + offset, length)

        if any(addresses):
            self._workers.each(len(self._pieces), copy)
        for entry, tensor, part in plan.others:
            load(data, entry, tensor, part)

    def _place(self, plan: Plan, number: int, name: str, tensor: Any, shard: Shard | None) -> None:
        entry, shape = self.layout.entries[number], tuple(int(n) for n in tensor.shape)
        part = part_of(entry, shard, shape)
        if part is None:
            here, there = _told(shape, shard), _told(entry.shape, entry.shard)
            said = f"{name} has {here} here and {there} where it was published"
            if entry.shard and shard is None:
                said += ": say which part is wanted, (name, tensor, Shard(offset, global_shape))"
            raise _refused(said)
        whole = shape == entry.shape
        address = address_of(tensor, entry.dtype) if whole else 0
        if not address and code_of(tensor.dtype) != entry.dtype:
            here, there = torch_name(code_of(tensor.dtype)), torch_name(entry.dtype)
            raise _refused(f"{name} is {here} here and {there} where it was published")
        if not address and (why := lies_elsewhere(tensor)):
            raise _refused(f"{name} {why}")
        if not is_torch(tensor) and not tensor.flags.writeable:
            raise _refused(f"{name} is read-only")
        if not address and overlaps_itself(tensor):
            said = "has elements that share their memory (was it expanded?)"
            raise _refused(f"{name} {said}: give one with memory for each, as its clone() is")
        if address and not plan.addresses[number]:
            plan.addresses[number] = address
        elif entry.bytes:
            plan.others.append((entry, tensor, part))


@dataclass
class Plan:
    """Where a version goes: for each entry the address that it is copied to, or 0; and the tensors
    that no plain copy fills (another device, gaps, a part, a second place), with their part. It is
    for at once: a tensor that is given other memory leaves its address behind."""

    addresses: list[int]
    others: list[tuple[Entry, Any, tuple[slice, ...]]]
    kept: object  # the tensors, so that their memory stays


def _told(shape: tuple[int, ...], shard: Shard | None) -> str:
    if shard is None:
        return f"shape {list(shape)}"
    part = f"the part at {list(shard.offset)} of {list(shard.global_shape)}"
    return f"shape {list(shape)}, {part},"


def _refused(why: str) -> RltraceError:
    return RltraceError(f"these weights do not fit: {why}", WRONG_USAGE)
