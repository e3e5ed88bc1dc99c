"""Copies between slots and tensors of a device, many at once."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltrace.sync.memory.dtypes import torch_name
from rltrace.sync.memory.layout import Layout
from rltrace.sync.memory.tensors import torch_view
from rltrace.trace.errors import RltraceError

if TYPE_CHECKING:
    from rltrace.sync.device.device_memory import Cuda

_log = logging.getLogger("rltrace.sync")
PIECE_BYTES = 64 << 20  # over the link: hashing is so far behind the copies
_ALONE_FROM_BYTES = 1 << 20  # smaller ones are gathered on the device: each copy has a price
_LARGE_BYTES = 4 << 20  # on a device: smaller tensors are copied many at a time
_KNOWN = ("BF16", "F16", "F32")  # to kernels that copy many
Kinds = dict[tuple[Any, Any], tuple[list[Any], list[Any]]]
Part = tuple[int, int, int]  # of an entry: its number, the part's first byte and the one after


def in_a_row(tensor: Any) -> Any:
    """The elements of a contiguous tensor in a row; a single one may have any stride."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def gather(kinds: Kinds, one: Any, other: Any) -> None:
    """Puts two tensors with those of the same types; as bytes where a kernel may not know these."""
    import torch

    known = {f"torch.{torch_name(code)}" for code in _KNOWN}
    if one.dtype is other.dtype and str(one.dtype) not in known:
        one, other = (in_a_row(tensor).view(torch.uint8) for tensor in (one, other))
    ones, others = kinds.setdefault((one.dtype, other.dtype), ([], []))
    ones.append(one)
    others.append(other)


class Within:
    def __init__(self, layout: Layout, device: Cuda) -> None:
        self.device = device
        self._entries = layout.entries
        self._views: dict[int, list[Any]] = {}
        self._large = [n for n, e in enumerate(self._entries) if e.bytes >= _LARGE_BYTES]
        self._small: dict[str, list[int]] = {code: [] for code in _KNOWN}
        self._rest: list[int] = []
        for number, entry in enumerate(self._entries):
            if entry.bytes < _LARGE_BYTES:
                self._small.get(entry.dtype, self._rest).append(number)

    def copy(
        self, data: Any, tensors: Sequence[Any], far: list[int], odd: set[int], to_slot: bool
    ) -> list[int]:
        """Queues it for tensors with an address in `far` (0: none); those in `odd` have another
        type. Returns those of another device, to be copied one by one; their address becomes 0."""
        base, device = data.data_ptr(), self.device
        if base not in self._views:
            self._views[base] = [torch_view(data, entry) for entry in self._entries]
        views = self._views[base]
        left: list[int] = []
        if not device.is_alone:
            left = [n for n, at in enumerate(far) if at and not device.owns(tensors[n])]
            for number in left:
                far[number] = 0
        for number in self._large:
            if far[number] and number not in odd:
                entry = self._entries[number]
                here, there = base + entry.offset, far[number]
                to, source = (here, there) if to_slot else (there, here)
                device.move(to, source, entry.bytes)
        kinds: Kinds = {}
        for group in self._small.values():
            wanted = [n for n in group if far[n] and n not in odd]
            if wanted:
                ours = [views[n] for n in wanted]
                kinds[ours[0].dtype, ours[0].dtype] = ours, [tensors[n] for n in wanted]
        for number in [n for n in self._rest if n not in odd] + sorted(odd):
            if far[number]:
                gather(kinds, views[number], tensors[number])
        for ours, theirs in kinds.values():
            device.copy(*((ours, theirs) if to_slot else (theirs, ours)))
        return left


class Crossing:
    """Copies between a host's page-locked slot and tensors of a device, in pieces: each is hashed
    while the next is on its way. Small or cast ones go through a piece of the device's memory."""

    def __init__(self, layout: Layout, device: Cuda) -> None:
        self._entries, self._device = layout.entries, device
        self._thread: ThreadPoolExecutor | None = None
        self._host, self._to_device = 0, False
        self._tensors: dict[int, Any] = {}
        self._stage: Any = None
        self._marks: list[Any] = []
        self._begins: list[int] = []
        self._issued = self._reached = 0
        self._changed = threading.Condition()
        self._copying: Future[None] | None = None

    def start(self, host: int, tensors: dict[int, Any], to_device: bool, *after: Any) -> None:
        """Begins to copy these entries, from or to a page-locked slot at `host`; then `finish`."""
        self._host, self._tensors, self._to_device = host, tensors, to_device
        pieces = self._pieces(sorted(tensors))
        self._begins = [self._entries[piece[0][0]].offset + piece[0][1] for piece in pieces]
        self._issued = self._reached = 0
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="rltrace.sync device")
        self._copying = self._thread.submit(self._copy, pieces, after)

    def wait(self, end: int) -> None:
        """Until the slot's bytes before `end` are copied; from any thread."""
        if end <= self._reached:
            return
        last = bisect_left(self._begins, end)
        with self._changed:
            while self._issued < last and self._copying is not None and not self._copying.done():
                self._changed.wait(0.05)
        if 0 < last <= self._issued:
            self._marks[last - 1].synchronize()
        if last <= self._issued:
            self._reached = max(self._reached, *self._begins[last : last + 1], end)

    def finish(self) -> None:
        """Until nothing is on its way. Errors: whatever the device raised."""
        copying, self._copying = self._copying, None
        try:
            if copying is not None:
                copying.result()
        finally:
            self._tensors = {}

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _pieces(self, numbers: Sequence[int]) -> list[list[Part]]:
        pieces: list[list[Part]] = []
        room = 0
        for number in numbers:
            size = self._entries[number].bytes
            for begin in range(0, size, PIECE_BYTES):
                end = min(begin + PIECE_BYTES, size)
                if end - begin > room:
                    pieces.append([])
                    room = PIECE_BYTES
                pieces[-1].append((number, begin, end))
                room -= end - begin
        return pieces

    def _copy(self, pieces: list[list[Part]], after: Sequence[Any]) -> None:
        import torch

        tensors, device = self._tensors, self._device
        dtypes = {n: getattr(torch, torch_name(self._entries[n].dtype)) for n in tensors}
        with device.queue(*after):
            for number, piece in enumerate(pieces):
                gathered: list[Part] = []
                for part in piece:
                    n, begin, end = part
                    at = self._entries[n].offset + begin
                    alone = end - begin >= _ALONE_FROM_BYTES and tensors[n].dtype is dtypes[n]
                    if gathered and (alone or self._end(gathered[-1]) != at):
                        self._gather(gathered, dtypes)
                        gathered = []
                    if not alone:
                        gathered.append(part)
                        continue
                    there, here = tensors[n].data_ptr() + begin, self._host + at
                    to, source = (there, here) if self._to_device else (here, there)
                    device.move(to, source, end - begin)
                if gathered:
                    self._gather(gathered, dtypes)
                again = self._marks[number] if number < len(self._marks) else None
                self._marks[number : number + 1] = [device.mark(again)]
                with self._changed:
                    self._issued = number + 1
                    self._changed.notify_all()

    def _end(self, part: Part) -> int:
        return self._entries[part[0]].offset + part[2]

    def _gather(self, parts: list[Part], dtypes: dict[int, Any]) -> None:
        import torch

        if self._stage is None:
            device = self._tensors[parts[0][0]].device
            self._stage = torch.empty(PIECE_BYTES, dtype=torch.uint8, device=device)
        stage, first = self._stage, self._entries[parts[0][0]].offset + parts[0][1]
        size = self._end(parts[-1]) - first
        if self._to_device:
            self._device.move(stage.data_ptr(), self._host + first, size)
        kinds: Kinds = {}
        for number, begin, end in parts:
            at, dtype = self._entries[number].offset + begin - first, dtypes[number]
            staged = stage[at : at + end - begin].view(dtype)
            tensor = in_a_row(self._tensors[number])
            if len(tensor) > len(staged):
                unit = staged.element_size()
                tensor = tensor[begin // unit : end // unit]
            gather(kinds, staged, tensor)
        for ours, theirs in kinds.values():
            self._device.copy(*((theirs, ours) if self._to_device else (ours, theirs)))
        if not self._to_device:
            self._device.move(self._host + first, stage.data_ptr(), size)


class FarSide:
    """A device as one side of a policy has it: made when the first of its tensors comes."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._device: Cuda | None = None
        self._is_out = False
        self._crossing: Crossing | None = None
        self._within: Within | None = None

    def device_of(self, tensor: Any) -> Cuda:
        """Errors: `RltraceError` where it cannot be used."""
        from rltrace.sync.device.device_memory import device_of

        self._device = self._device or device_of(tensor)
        return self._device

    def device_at_hand(self, tensor: Any) -> Cuda | None:
        """None where its tensors had better be copied by torch alone, which is logged once."""
        try:
            return None if self._is_out else self.device_of(tensor)
        except RltraceError as error:
            self._is_out = True
            _log.warning("tensors of %s are copied one by one: %s", tensor.device, error)
            return None

    def within(self, data: Any) -> Within:
        """For slots of its memory. Errors: those of `device_of`."""
        self._within = self._within or Within(self._layout, self.device_of(data))
        return self._within

    def begin(
        self,
        data: Any,
        path: Path | None,
        far: Sequence[int],
        tensors: Sequence[Any],
        to_device: bool,
        *after: Any,
    ) -> tuple[Crossing | None, list[int]]:
        """Has tensors with an address in `far` on their way, to be finished by the caller; returns
        the numbers of those left to copy. `path`: of a slot whose memory may only be read."""
        numbers = [number for number, address in enumerate(far) if address]
        device = self.device_at_hand(tensors[numbers[0]]) if numbers else None
        host = device.pinned(data, path) if device is not None else 0
        if device is None or not host:
            return None, numbers
        ours = {n: tensors[n] for n in numbers if device.owns(tensors[n])}
        if ours:
            self._crossing = self._crossing or Crossing(self._layout, device)
            self._crossing.start(host, ours, to_device, *after, device.now())
        return self._crossing if ours else None, [n for n in numbers if n not in ours]

    def close(self) -> None:
        if self._crossing is not None:
            self._crossing.close()
        self._device = self._crossing = self._within = None
