"""Copies a leased version into a worker's own tensors, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.device.device_copies import FarSide
from rltrace.sync.memory import tensors
from rltrace.sync.memory.block_digests import BLOCK_BYTES, Digests, block_range, digest
from rltrace.sync.memory.copying import Addresses, TensorPieces, Workers, hashing_copier
from rltrace.sync.memory.dtypes import FLOATS, code_of, torch_name
from rltrace.sync.memory.layout import Layout, Shard, check_tensor, held, memory_of, named_tensors
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.job_exceptions import contained


class Applier:
    def __init__(self, layout: Layout, workers: Workers) -> None:
        self.layout, self._workers = layout, workers
        self._pieces = TensorPieces(layout)
        self._copy_hashed = hashing_copier(layout.bytes)
        self._matcher, self._reach = tensors.Matcher(layout), FarSide(layout)
        self._bytes = np.array([entry.bytes for entry in layout.entries], np.int64)

    def plan(self, weights: Any, partial: bool = False, cast: bool = False) -> CopyPlan:
        """Where everything goes; a tensor with a `Shard` takes that part; see `pull_into`.
        Errors: `RltraceError` that names a tensor that does not fit; none was touched."""
        given, shards = held(weights), dict[str, Shard]()
        if hasattr(weights, "state_dict"):
            _check_own(weights, given)
        if not isinstance(given, dict):
            items = list(named_tensors(given))
            given = {name: tensor for name, tensor, _ in items}
            shards = {name: shard for name, _, shard in items if shard is not None}
            if len(given) < len(items):
                raise _refused("two of them have the same name")
        entries = self.layout.entries
        addresses, far = [0] * len(entries), [0] * len(entries)
        first = list[Any]([None] * len(entries))
        whole = {n: t for n, t in given.items() if n not in shards} if shards else given
        rest = self._matcher.match(whole, addresses, first, far)
        others: list[Other] = []
        for name, tensor in [*rest, *((name, given[name]) for name in shards)]:
            number = self.layout.numbers.get(name)
            if number is None:
                raise _refused(f"{name} was not published")
            check_tensor(name, tensor)
            part = self._part(name, number, tensor, shards.get(name), cast)
            address, before, places = 0, first[number], addresses
            if tuple(tensor.shape) == entries[number].shape:
                address = tensors.address_of(tensor, entries[number].dtype)
                if not address and code_of(tensor.dtype) == entries[number].dtype:
                    address, places = tensors.far_address_of(tensor), far
            if before is None:
                first[number], places[number] = tensor, address
            elif address and address == places[number]:
                continue  # tied here, too
            if before is not None or not address:
                others.append(Other(number, tensor, part))
        lacking = [e.name for e, tensor in zip(entries, first, strict=True) if tensor is None]
        if lacking and not partial:
            said = f"{lacking[0]} was published, and there is no tensor of that name"
            raise _refused(f"{said} (partial=True takes a part)")
        plan = CopyPlan(np.array(addresses, np.int64), np.array(far, np.int64), others, first)
        self._check_apart(plan)
        return plan

    def check_equal(self, data: Any, plan: CopyPlan) -> None:
        """Errors: `RltraceError` where tensors that are one here had other values there."""
        for one, other in plan.equal:
            entries = [self.layout.entries[number] for number in (one, other)]
            parts = [tensors.bytes_of(data, entry) for entry in entries]
            if not np.array_equal(parts[0], parts[1]):
                names = " and ".join(entry.name for entry in entries)
                said = "share their memory here and were published with other values"
                raise _refused(f"{names} {said}")

    def apply(
        self, data: Any, digests: Digests | None, plan: CopyPlan, path: Path | None = None
    ) -> list[int]:
        """Copies all, unless blocks are not as their `digests` say: returns those, a part copied.
        `path`: of a slot in shared memory. Errors: what the device raises, a part copied."""
        if tensors.is_torch(data):
            return self._apply_on_device(data, digests, plan)
        crossing, left = self._reach.begin(data, path, plan.far.tolist(), plan.first, True)
        try:
            wrong = self._apply_blocks(data, digests, plan)
        finally:
            if crossing is not None:
                crossing.finish()
        if not wrong:
            for number, tensor, part in [*self._whole(left, plan), *plan.others]:
                tensors.load(data, self.layout.entries[number], tensor, part)
        return wrong

    def _apply_on_device(self, data: Any, digests: Digests | None, plan: CopyPlan) -> list[int]:
        """Checks all blocks before it copies: on a device one does not wait for the other."""
        within = self._reach.within(data)
        device = within.device
        with device.queue(device.now()):
            if digests is not None:
                wrong = np.flatnonzero(device.digests(data) != digests).tolist()
                if wrong:
                    return list(wrong)
            left = within.copy(data, plan.first, plan.far.tolist(), set(), to_slot=False)
            left += np.flatnonzero(plan.addresses).tolist()  # of the host
            for number, tensor, part in [*self._whole(left, plan), *plan.others]:
                tensors.load(data, self.layout.entries[number], tensor, part)
        return []

    def _whole(self, numbers: Sequence[int], plan: CopyPlan) -> list[Other]:
        shapes = [self.layout.entries[number].shape for number in numbers]
        parts = [tuple(slice(0, size) for size in shape) for shape in shapes]
        return [Other(n, plan.first[n], part) for n, part in zip(numbers, parts, strict=True)]

    def _apply_blocks(
        self, data: NDArray[np.uint8], digests: Digests | None, plan: CopyPlan
    ) -> list[int]:
        pieces, total, view = self._pieces, len(data), data.data
        here, there = pieces.offset + data.ctypes.data, pieces.lie_at(plan.addresses)
        wrong: list[int] = []
        is_near = bool(plan.addresses.any())

        def copy(block: int) -> None:
            begin, end = pieces.first[block], pieces.first[block + 1]
            expected = digests.item(block) if digests is not None else -1
            to = there.item(begin)
            if digests is not None and end - begin == 1 and to:
                found = self._copy_hashed(to, here.item(begin), pieces.length.item(begin))
            else:
                start, stop = block_range(block, total)
                found = digest(view[start:stop]) if digests is not None else expected
                if found == expected and is_near:
                    pieces.copy(block, there, here, read_next=False)
            if found != expected:
                wrong.append(block)

        wanted = plan.addresses != 0
        if digests is not None:
            wanted |= plan.far != 0
        wanted[[other.number for other in plan.others]] = True
        blocks = np.unique(pieces.offset[wanted[pieces.entry]] // BLOCK_BYTES)
        self._workers.each(blocks.tolist(), copy)
        return sorted(wrong)

    def _part(
        self, name: str, number: int, tensor: Any, shard: Shard | None, cast: bool
    ) -> tuple[slice, ...]:
        entry, shape = self.layout.entries[number], tuple(int(n) for n in tensor.shape)
        part = tensors.part_of(entry, shard, shape)
        if part is None:
            here, there = _told(shape, shard), _told(entry.shape, entry.shard)
            said = f"{name} has {here} here and {there} where it was published"
            if entry.shard and shard is None:
                said += ": say which part is wanted, (name, tensor, Shard(offset, global_shape))"
            raise _refused(said)
        code = code_of(tensor.dtype)
        if code != entry.dtype and not (cast and {code, entry.dtype} <= FLOATS):
            here, there = torch_name(code), torch_name(entry.dtype)
            castable = " (cast=True casts it)" if {code, entry.dtype} <= FLOATS else ""
            raise _refused(f"{name} is {here} here and {there} where it was published{castable}")
        if why := tensors.lies_elsewhere(tensor):
            raise _refused(f"{name} {why}")
        if not tensors.is_torch(tensor) and not tensor.flags.writeable:
            raise _refused(f"{name} is read-only")
        if tensors.overlaps_itself(tensor):
            said = "has elements that share their memory (was it expanded?)"
            raise _refused(f"{name} {said}: give one with memory for each, as its clone() is")
        return part

    def _check_apart(self, plan: CopyPlan) -> None:
        """Notes which tensors lie at one place. Errors: `RltraceError` where two overlap."""
        addresses = plan.addresses + plan.far  # no entry has both, and no two memories one address
        numbers = np.flatnonzero(addresses)
        numbers = numbers[np.argsort(addresses[numbers])]
        begins = addresses[numbers]
        ends = begins + self._bytes[numbers]
        if not plan.others and (begins[1:] >= ends[:-1]).all():
            return
        plain = self._whole(numbers.tolist(), plan)
        places = list(zip(begins.tolist(), ends.tolist(), plain, strict=True))
        full = [o for o in plan.others if self._bytes[o.number] and min(o.tensor.shape, default=1)]
        places += [(*tensors.reach_of(other.tensor), other) for other in full]
        near: list[tuple[int, Other]] = []  # that reach beyond where the next one begins
        for low, high, place in sorted(places, key=lambda found: found[:2]):
            near = [each for each in near if each[0] > low]
            for _, before in near:
                same = memory_of(place.tensor) == memory_of(before.tensor)
                if same and place.part == before.part:
                    plan.equal.append((place.number, before.number))
                elif tensors.share_memory(place.tensor, before.tensor):
                    names = [self.layout.entries[each.number].name for each in (before, place)]
                    raise _refused(f"{' and '.join(names)} overlap in memory here")
            near.append((high, place))


class Other(NamedTuple):
    number: int
    tensor: Any
    part: tuple[slice, ...]


@dataclass
class CopyPlan:
    """For each entry the address that it is copied to, or 0, `far` the same on a device; the
    tensors that no plain copy fills. It is for at once: a tensor may be given other memory."""

    addresses: Addresses
    far: Addresses
    others: list[Other]
    first: list[Any]  # of each entry, so that its memory stays
    equal: list[tuple[int, int]] = field(default_factory=list)  # that have to be equal


def _check_own(model: Any, given: Any) -> None:
    """Errors: `RltraceError` that names a tensor of a model's state which is not its own memory."""
    listing = (getattr(model, kind, tuple) for kind in ("parameters", "buffers"))
    own = [tensor for listed in listing for tensor in listed()]
    known = {id(tensor) for tensor in own}
    places: set[int] | None = None
    for name, tensor in given.items() if isinstance(given, dict) else ():
        if id(tensor) in known or not tensors.is_torch(tensor) or not tensor.numel():
            continue
        if places is None:
            places = {_storage(tensor) for tensor in own}
        if _storage(tensor) not in places:
            said = f"{name} of its state_dict() is a copy (as of FSDP, offloading or a hook), and"
            said += " what is written to it is lost: give the tensors themselves, as a dict"
            raise _refused(f"{said} name -> tensor or (name, tensor, Shard)")


def _storage(tensor: Any) -> int:
    with contained(AttributeError, RuntimeError):
        return int(tensor.untyped_storage().data_ptr())
    return int(tensor.data_ptr())


def _told(shape: tuple[int, ...], shard: Shard | None) -> str:
    if shard is None:
        return f"shape {list(shape)}"
    part = f"the part at {list(shard.offset)} of {list(shard.global_shape)}"
    return f"shape {list(shape)}, {part},"


def _refused(why: str) -> RltraceError:
    return WrongUsage(f"these weights do not fit: {why}")
