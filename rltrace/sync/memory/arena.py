"""A policy's slots on one host: one writer, many readers, no waiting.

    rltrace-control                    what everyone agrees by (control.py)
    slot-<generation>-<n>.safetensors  the data of one version each (slots.py), or its place
    rltrace-writer, rltrace-present    locks: the one writer; everyone who has it open

A version is written into a slot that is neither the latest nor leased, and is the latest by one
store. A reader locks the slot that the word names, then looks whether it still holds that version.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

from numpy.typing import NDArray

from rltrace.sync.memory.block_digests import Digests, root_of
from rltrace.sync.memory.control import (
    CONTROL,
    LEAST_SLOTS,
    MOST_SLOTS,
    WRITER,
    Control,
    begun_after,
    enter,
    leave,
    reclaim,
    slot_of,
)
from rltrace.sync.memory.layout import Layout
from rltrace.sync.memory.locks import Lock, or_else
from rltrace.sync.memory.policy_memory import folder_of, make_folder
from rltrace.sync.memory.slots import SLOT_FILES, FileSlots, slot_path, slots_of
from rltrace.sync.memory.tensors import is_torch, numpy_view, torch_view
from rltrace.sync.version import NO_ROOT, Behind, Manifest, Version
from rltrace.trace.errors import RltraceError, WrongUsage

if TYPE_CHECKING:
    from torch import Tensor

SILENCE_S = 2.0  # a side that says nothing for so long is gone
_POLL_S = 0.0002


class ReplacedError(RltraceError):
    """Other slots are in the place of these: attach anew."""


class Arena:
    """One process's hold on a policy's slots, to write them or to read them."""

    def __init__(
        self, folder: Path, control: Control, slots: FileSlots, present: Lock, writer: Lock | None
    ) -> None:
        self.folder = folder
        self.control = control
        self.layout = control.layout
        self.slots = slots
        self._writer = writer
        self._maps: dict[int, Any] = {}
        self._most_slots = control.slots
        # Also where nobody closes it: when it is forgotten, or when the process ends well.
        self._let_go = finalize(self, _let_go, folder, slots, present, writer)

    @staticmethod
    def create(
        where: str,
        layout: Layout,
        slots: int = 2,
        spare: int = 1,
        run: str | None = None,
        is_relay: bool = False,
    ) -> Arena:
        """Opens a policy for writing, and takes its memory now: `slots` times the layout's bytes;
        up to `spare` more while readers are slow. Takes over slots of the same layout, and the
        latest version unless it is of another `run` (16 hexadecimal digits; None: any). Removes
        what dead processes left. Errors: `RltraceError` for a live writer or too little memory."""
        if not 2 <= slots <= slots + spare <= MOST_SLOTS:
            said = f"{slots} slots and {spare} spare: it takes 2 to {MOST_SLOTS} in all"
            raise WrongUsage(said)
        folder, memory = folder_of(where), slots_of(where)
        make_folder(folder)
        reclaim(folder.parent, but=folder)
        present = enter(folder)
        writer = Lock.take(folder / WRITER)
        if writer is None:
            present.release()
            raise RltraceError(f"{where} has a publisher already: give each policy its own name")
        with or_else(lambda: _let_go(folder, memory, present, writer)):
            control = _take_over(folder, layout, run, memory.survive)
            control.see(time.monotonic(), is_relay)
            arena = Arena(folder, control, memory, present, writer)
            arena._most_slots = slots + spare
            slots = max(slots, control.slots)
            memory.check_room(folder, slots - control.slots, layout)
            for slot in range(slots):
                arena._make_slot(slot)
        return arena

    @staticmethod
    def attach(where: str, timeout_s: float = 0.0) -> Arena:
        """Opens a policy for reading; waits for one that is not there. Errors: `RltraceError`."""
        folder, deadline = folder_of(where), time.monotonic() + timeout_s
        memory = slots_of(where)
        while True:
            if lies_here(where) and (memory.survive or Lock.is_held(folder / WRITER)):
                present = enter(folder)
                with suppress(FileNotFoundError), or_else(present.release):
                    control = Control(folder / CONTROL)
                    if not control.replaced:
                        return Arena(folder, control, memory, present, None)
                present.release()  # it was removed in between, or is about to be replaced
                leave(folder)
            if time.monotonic() >= deadline:
                raise RltraceError(f"nothing is published at {where} on this host")
            time.sleep(_POLL_S)

    def latest(self) -> Version | None:
        """The latest version; None before the first. Errors: `ReplacedError`."""
        manifest = self.manifest()
        return None if manifest is None else manifest.version

    def manifest(self) -> Manifest | None:
        while True:
            self._check_place()
            word = self.control.latest
            if not word:
                return None
            if slot_of(word) >= MOST_SLOTS:
                raise self._damaged()
            manifest, is_sound = self.control.manifest(slot_of(word))
            if self.control.latest == word:
                if not is_sound:
                    raise self._damaged()
                return manifest

    def behind(self) -> Behind:
        """Whether newer weights can come, and for how long they have not been able to."""
        seconds = max(0.0, time.monotonic() - self.control.seen_s)
        if not (self.folder / CONTROL).exists():
            return Behind(seconds, f"{self.folder} was removed while it was in use")
        if not Lock.is_held(self.folder / WRITER):
            return Behind(seconds, "no learner is there now")
        if self.control.is_fed and seconds > SILENCE_S:
            return Behind(seconds, "the relay that brings them here has not heard of the learner")
        return Behind()

    def lease(self, version: Version | None = None) -> Lease | None:
        """Keeps the latest version, or a given one, as long as the lease lives; None: it is gone.
        Errors: `ReplacedError`; `RltraceError` where the memory was removed, cut or overwritten."""
        while True:
            self._check_place()
            word = self.control.latest if version is None else self.control.find(version)
            if not word:
                return None
            slot = slot_of(word)
            path = self._slot_path(slot)
            lock = Lock.take(path, shared=True)
            if lock is not None and self.control.holds(slot, word):
                with or_else(lock.release):
                    data = self._map(slot)
                    if not self.slots.survive:  # while their writer lives they can be opened
                        for other in range(self.control.slots):
                            self._map(other)
                    manifest, is_sound = self.control.manifest(slot)
                    if not is_sound:
                        raise self._damaged()
                return Lease(manifest, data, path, slot, self.control, lock)
            if lock is not None:
                # Nobody writes to the slot of the latest version, nor, under our lock, to this one.
                lies = version is None and self.control.latest == word
                lock.release()
                if lies:
                    raise self._damaged()
            elif version is not None:
                return None  # it is being written to
            elif not path.exists() and not self.control.replaced:
                raise RltraceError(f"{path} was removed while it was in use")

    def write(self, patience_s: float = 0.05) -> SlotWrite | None:
        """A free slot to fill. Where readers hold all but the latest, waits, then makes a spare
        one; None where there is no more room: leave this version out."""
        if self._writer is None or self._writer.fd < 0:
            said = f"{self.folder.name} is not written by this process: it was closed, or forked"
            raise WrongUsage(said)
        if self.control.replaced or not (self.folder / CONTROL).exists():
            said = f"{self.folder} was removed while it was in use: open the publisher again"
            raise RltraceError(said)
        deadline = time.monotonic() + patience_s
        while True:
            word = self.control.latest
            for slot in range(self.control.slots):
                if word and slot_of(word) == slot:
                    continue
                data = self._map(slot)
                lock = Lock.take(self._slot_path(slot))
                if lock is not None:
                    self.slots.mend(self._slot_path(slot), self.layout)
                    self.control.begin(slot)
                    return SlotWrite(self, slot, data, self.control.digests(slot), lock)
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)
        if self.control.slots >= self._most_slots:
            return None
        try:
            self._make_slot(self.control.slots)
        except (RltraceError, FileNotFoundError):  # there is no memory for it now, or no folder
            return None
        return self.write(patience_s)

    @property
    def is_open(self) -> bool:
        return self._let_go.alive

    def close(self) -> None:
        """Lets go. The last one out removes the policy: its memory is free again."""
        self._maps.clear()
        self._let_go()

    def _check_place(self) -> None:
        if self.control.replaced:
            raise ReplacedError(f"{self.folder.name} is not the policy that it was")

    def _damaged(self) -> RltraceError:
        return RltraceError(
            f"{self.folder / CONTROL} names a version that no slot holds: something else has"
            " written to it; the next version that is published is right again"
        )

    def _make_slot(self, slot: int) -> None:
        path = self._slot_path(slot)
        if not path.exists():
            self.slots.create(path, self.layout)
        self._map(slot)
        self.control.slots = max(self.control.slots, slot + 1)

    def _slot_path(self, slot: int) -> Path:
        return slot_path(self.folder, self.control.generation, slot)

    def _map(self, slot: int) -> Any:
        if slot not in self._maps:
            path = self._slot_path(slot)
            self._maps[slot] = self.slots.map(path, self.layout, self._writer is not None)
        return self._maps[slot]


@dataclass
class SlotWrite:
    """A slot being filled: `data` and `digests` are its memory. Nobody reads it."""

    arena: Arena
    slot: int
    data: Any  # bytes, as `FileSlots.map` gives them
    digests: Digests
    _lock: Lock

    def commit(
        self, step: int = -1, version: Version | None = None, hashed: bool = True
    ) -> Version:
        """Makes this the latest version, by one store: a relay's `version`, or the next one; not
        `hashed`: without digests. Errors: `RltraceError`, aborted, where that is not later."""
        control, latest = self.arena.control, None
        with suppress(RltraceError):  # it is damaged, which this version mends
            latest = self.arena.latest()
        if version is None:
            version = Version(control.run, control.epoch, control.counter + 1)
        if latest is not None and version <= latest:
            self.abort()
            raise RltraceError(f"version {version} is not after {latest}")
        root = root_of(self.digests) if hashed else NO_ROOT
        word = control.finish(self.slot, version, step, root)
        control.counter = max(control.counter, version.counter)
        if not control.is_fed:
            control.see(time.monotonic())
        self._lock.release()
        control.latest = word
        return version

    def abort(self) -> None:
        self._lock.release()


@dataclass(eq=False)
class Lease(Mapping[str, NDArray[Any]], AbstractContextManager["Lease"]):
    """A version that stays as it is until `release()`: its tensors by name, tied names included, as
    read-only arrays, those of types that NumPy lacks as unsigned integers."""

    manifest: Manifest  # version, learner's step and digest
    data: Any  # bytes, read-only, as `FileSlots.map` gives them
    file: Path  # of the slot
    slot: int
    control: Control
    _lock: Lock

    @property
    def path(self) -> Path:
        """A safetensors file of the version, for engines that load from one."""
        self._check(in_memory=True)
        return self.file

    @property
    def digests(self) -> Digests:
        return self.control.digests(self.slot)

    def __getitem__(self, name: str) -> NDArray[Any]:
        self._check(in_memory=True)
        return numpy_view(self.data, self.control.layout.by_name[name])

    def torch(self, name: str) -> Tensor:
        """As a tensor of torch's. It must not be written to: that ends the process."""
        self._check(in_memory=False)
        return torch_view(self.data, self.control.layout.by_name[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.control.layout.by_name)

    def __len__(self) -> int:
        return len(self.control.layout.by_name)

    def release(self) -> None:
        """Lets the slot be written again; once is enough."""
        self._lock.release()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _check(self, in_memory: bool) -> None:
        if self._lock.fd < 0:
            raise WrongUsage("this lease has been released")
        if in_memory and is_torch(self.data):
            raise WrongUsage("these weights lie on a device: take each by views.torch(name)")


def lies_here(where: str) -> bool:
    """Whether a policy of that name lies in what this process sees of its host's memory."""
    return (folder_of(where) / CONTROL).exists()


def _take_over(folder: Path, layout: Layout, run: str | None, survive: bool) -> Control:
    """The new writer's control file: what stands there, one epoch on, or a new one where that is
    none, of another layout, or without its slots. Called under the writer's lock."""
    path = folder / CONTROL
    old = None
    with suppress(FileNotFoundError, RltraceError):  # nothing that can be read: it is replaced
        old = Control(path)
    epoch = begun_after(old)
    if old is not None and survive and old.layout.id == layout.id and _stands(folder, old):
        old.epoch = epoch
        if run is not None and run != old.run:
            old.latest, old.run = 0, run
        return old
    counter = old.counter if old is not None else 0
    named = run or (old.run if old is not None else secrets.token_hex(8))
    if old is not None:
        old.retired = 1  # first: readers wait for the new one, not for slots that are gone
    for leftover in folder.glob(SLOT_FILES):
        leftover.unlink()
    beside = LEAST_SLOTS * layout.bytes if survive else 0
    return Control.create(path, layout, named, epoch, counter, beside)


def _let_go(folder: Path, slots: FileSlots, present: Lock, writer: Lock | None) -> None:
    slots.close()
    if writer is not None:
        writer.release()
    present.release()
    leave(folder)


def _stands(folder: Path, control: Control) -> bool:
    """Whether it is in use with all its files: a writer may have been killed while it opened."""
    if control.replaced:
        return False
    paths = [slot_path(folder, control.generation, slot) for slot in range(control.slots)]
    return all(os.path.exists(path) for path in paths)
