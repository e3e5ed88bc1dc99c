"""The slots of one policy on one host: a single writer, any number of readers, no waiting.

    rltrace-control                    what everyone agrees by (control.py)
    slot-<generation>-<n>.safetensors  the data of one version each (slots.py)
    rltrace-writer, rltrace-present    locks: the one writer; everyone who has it open

A version is written into a slot that is neither the latest nor leased, under an exclusive lock on
the slot's file, and becomes the latest by one store. A reader takes a shared lock on the slot that
the word names and then looks whether the slot still holds that version. All locks are the kernel's
and end with their process, so there is nothing to clean up after one that was killed.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.blocks import Digests, root_of
from rltrace.sync.control import CONTROL, MOST_SLOTS, Control, Word
from rltrace.sync.layout import Layout
from rltrace.sync.leftovers import WRITER, enter, leave, reclaim
from rltrace.sync.locks import Lock
from rltrace.sync.place import check_room, folder_of, make_folder
from rltrace.sync.slots import SLOT_FILES, create_slot, map_slot, slot_bytes, slot_path
from rltrace.sync.version import NO_ROOT, Manifest, Version
from rltrace.trace.errors import WRONG_USAGE, RltraceError

_POLL_S = 0.0002


class LayoutChangedError(RltraceError):
    """The policy has another layout now: attach anew."""


class Arena:
    """One process's hold on a policy's slots. `Arena.create` for the writer, `Arena.attach` for
    readers."""

    def __init__(self, folder: Path, control: Control, present: Lock, writer: Lock | None) -> None:
        self.folder = folder
        self.control = control
        self.layout = control.layout
        self._present = present
        self._writer = writer
        self._maps: dict[int, NDArray[np.uint8]] = {}
        self._most_slots = control.slots
        # Also where nobody closes it: when it is forgotten, or when the process ends well.
        self._let_go = finalize(self, _let_go, folder, present, writer)

    @staticmethod
    def create(
        where: str, layout: Layout, slots: int = 2, spare: int = 1, run: str | None = None
    ) -> Arena:
        """Opens a policy for writing, and takes its memory now: `slots` times the layout's bytes.
        Up to `spare` further ones are made when readers are slow. A policy that stands there is
        taken over: its slots are reused where the layout is the same, its latest version stays,
        unless it is of another `run` (16 hexadecimal digits; None takes over whatever there is).
        What dead processes have left beside it is removed.

        Errors: `RltraceError` where it has a live writer or there is too little memory.
        """
        if not 2 <= slots <= slots + spare <= MOST_SLOTS:
            said = f"{slots} slots and {spare} spare: it takes 2 to {MOST_SLOTS} in all"
            raise RltraceError(said, WRONG_USAGE)
        folder = folder_of(where)
        make_folder(folder)
        reclaim(folder.parent)
        present = enter(folder)
        writer = Lock.take(folder / WRITER)
        if writer is None:
            present.release()
            raise RltraceError(f"{where} has a publisher already: give each policy its own name")
        try:
            control = _take_over(folder, layout, run)
            arena = Arena(folder, control, present, writer)
            arena._most_slots = slots + spare
            slots = max(slots, control.slots)
            check_room(folder, (slots - control.slots) * slot_bytes(layout))
            for slot in range(slots):
                arena._make_slot(slot)
        except BaseException:
            writer.release()
            present.release()
            leave(folder)
            raise
        return arena

    @staticmethod
    def attach(where: str, timeout_s: float = 0.0) -> Arena:
        """Opens a policy for reading; waits for one that is not there yet.

        Errors: `RltraceError` where there is none in time.
        """
        folder, deadline = folder_of(where), time.monotonic() + timeout_s
        while True:
            if lies_here(where):
                present = enter(folder)
                try:
                    control = Control(folder / CONTROL)
                    if not control.retired:
                        return Arena(folder, control, present, None)
                    present.release()  # the publisher is about to replace it
                except FileNotFoundError:  # removed in between
                    present.release()
                    leave(folder)
                except BaseException:
                    present.release()
                    raise
            if time.monotonic() >= deadline:
                raise RltraceError(f"nothing is published at {where} on this host")
            time.sleep(_POLL_S)

    def latest(self) -> Version | None:
        """The latest version; None before the first. Errors: `LayoutChangedError`."""
        while True:
            word = self.control.latest
            if self.control.retired:
                raise LayoutChangedError(f"{self.folder.name} has other tensors than before")
            if not word:
                return None
            if Word.of(word).slot >= MOST_SLOTS:
                raise self._damaged()
            manifest = self.control.manifest(Word.of(word).slot)
            if self.control.latest == word:
                return manifest.version

    def lease(self, version: Version | None = None) -> Lease | None:
        """Holds the latest version, or a given one, as long as the lease lives: its slot is not
        written to. None where nothing is published, or the given version is gone.

        Errors: `LayoutChangedError`; `RltraceError` where something else has removed, cut or
        overwritten the memory.
        """
        while True:
            if self.control.retired:
                raise LayoutChangedError(f"{self.folder.name} has other tensors than before")
            word = self.control.latest if version is None else self.control.find(version)
            if not word:
                return None
            slot = Word.of(word).slot
            path = slot_path(self.folder, self.control.generation, slot)
            lock = Lock.take(path, shared=True)
            if lock is not None and self.control.holds(slot, word):
                try:
                    data = self._map(slot)
                except BaseException:
                    lock.release()
                    raise
                return Lease(self.control.manifest(slot), data, path, slot, self.control, lock)
            if lock is not None:
                # Nobody writes to the slot of the latest version, nor, under our lock, to this one.
                lies = version is None and self.control.latest == word
                lock.release()
                if lies:
                    raise self._damaged()
            elif not path.exists() and not self.control.retired:
                raise RltraceError(f"{path} was removed while it was in use")

    def write(self, patience_s: float = 0.05) -> SlotWrite | None:
        """A free slot to fill. Where readers hold all but the latest, waits that long, then makes a
        spare one; None where there is no more room: leave this version out."""
        if self._writer is None or self._writer.fd < 0:
            said = f"{self.folder.name} is not written by this process, or it was forked since"
            raise RltraceError(said, WRONG_USAGE)
        deadline = time.monotonic() + patience_s
        while True:
            word = self.control.latest
            for slot in range(self.control.slots):
                if word and Word.of(word).slot == slot:
                    continue
                data = self._map(slot)
                lock = Lock.take(slot_path(self.folder, self.control.generation, slot))
                if lock is not None:
                    self.control.begin(slot)
                    return SlotWrite(self, slot, data, self.control.digests(slot), lock)
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)
        if not self.folder.exists():
            said = f"{self.folder} was removed while it was in use: open the publisher again"
            raise RltraceError(said)
        if self.control.slots < self._most_slots:
            try:
                self._make_slot(self.control.slots)
            except RltraceError:
                self._most_slots = self.control.slots  # there is no memory for it: do not try again
                return None
            return self.write(patience_s)
        return None

    def close(self) -> None:
        """Lets go. The last one out removes the policy: its memory is free again."""
        self._maps.clear()
        self._let_go()

    def _damaged(self) -> RltraceError:
        return RltraceError(
            f"{self.folder / CONTROL} names a version that no slot holds: something else has"
            " written to it; end those who use this policy and remove its folder"
        )

    def _make_slot(self, slot: int) -> None:
        path = slot_path(self.folder, self.control.generation, slot)
        if not path.exists():
            create_slot(path, self.layout)
        self._map(slot)
        self.control.slots = max(self.control.slots, slot + 1)

    def _map(self, slot: int) -> NDArray[np.uint8]:
        if slot not in self._maps:
            path = slot_path(self.folder, self.control.generation, slot)
            self._maps[slot] = map_slot(path, self.layout, self._writer is not None)
        return self._maps[slot]


@dataclass
class SlotWrite:
    """A slot being filled: `data` and `digests` are its memory. Nobody reads it."""

    arena: Arena
    slot: int
    data: NDArray[np.uint8]
    digests: Digests
    _lock: Lock

    def commit(
        self, step: int = -1, version: Version | None = None, hashed: bool = True
    ) -> Version:
        """Makes what was filled in the latest version, by one store. A relay gives the `version`
        that it has received; a publisher has the next one of its own. Not `hashed`: `digests` was
        not filled in.

        Errors: `RltraceError` where the version is not after the latest of its run; then it is
        aborted.
        """
        control, latest = self.arena.control, self.arena.latest()
        if version is None:
            version = Version(control.run, control.epoch, control.counter + 1)
        if latest is not None and latest.run == version.run and version <= latest:
            self.abort()
            raise RltraceError(f"version {version} is not after {latest}")
        root = root_of(self.digests) if hashed else NO_ROOT
        word = control.finish(self.slot, version, step, root)
        control.counter = max(control.counter, version.counter)
        self._lock.release()
        control.latest = word
        return version

    def abort(self) -> None:
        """Leaves everything as it was; the slot is free."""
        self._lock.release()


@dataclass
class Lease:
    """A version that stays as it is until `release()`. `data` is read-only, in place; `path` is a
    safetensors file of it, good for as long as the lease."""

    manifest: Manifest
    data: NDArray[np.uint8]
    path: Path
    slot: int
    control: Control
    _lock: Lock

    @property
    def digests(self) -> Digests:
        """The block table, in place."""
        return self.control.digests(self.slot)

    def release(self) -> None:
        """Lets the slot be written again."""
        self._lock.release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def lies_here(where: str) -> bool:
    """Whether a policy of that name lies in what this process sees of its host's memory."""
    return (folder_of(where) / CONTROL).exists()


def _take_over(folder: Path, layout: Layout, run: str | None) -> Control:
    """The control file of the writer that now begins: what stands there, one epoch on, or a new one
    where there is none or it is of another layout. Called under the writer's lock."""
    path = folder / CONTROL
    old = None
    try:
        old = Control(path)
    except (FileNotFoundError, RltraceError):
        pass  # nothing, or nothing that can be read: it is replaced
    if old is not None and old.layout.id == layout.id and _stands(folder, old):
        old.epoch += 1
        if run is not None and run != old.run:
            old.latest, old.run = 0, run
        return old
    epoch, counter = (old.epoch + 1, old.counter) if old is not None else (1, 0)
    named = run or (old.run if old is not None else secrets.token_hex(8))
    if old is not None:
        old.retire()  # first: readers wait for the new one rather than look for slots that are gone
    for leftover in folder.glob(SLOT_FILES):
        leftover.unlink()
    return Control.create(path, layout, named, epoch, counter)


def _let_go(folder: Path, present: Lock, writer: Lock | None) -> None:
    if writer is not None:
        writer.release()
    present.release()
    leave(folder)


def _stands(folder: Path, control: Control) -> bool:
    """Whether it is in use and every slot has its file: a writer may have been killed while it
    opened."""
    if control.retired:
        return False
    paths = [slot_path(folder, control.generation, slot) for slot in range(control.slots)]
    return all(os.path.exists(path) for path in paths)
