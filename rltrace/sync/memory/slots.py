"""Where a slot's data lies: in shared memory or on a device.

In shared memory a slot is a valid safetensors file. On a device two small files stand for it: one
that leases lock, and one with the handle for others.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rltrace.sync.memory.block_digests import Digests, digest_at
from rltrace.sync.memory.copying import Workers
from rltrace.sync.memory.layout import Layout
from rltrace.sync.memory.locks import Lock, or_else
from rltrace.sync.memory.policy_memory import check_room, is_on_device, no_room, reserve
from rltrace.trace.errors import CANNOT_TELL, RltraceError
from rltrace.trace.untrusted_files import NONSENSE, parsed

if TYPE_CHECKING:
    from rltrace.sync.device.device_memory import Cuda, DeviceMemory

_NAME = "slot-{generation}-{slot}.safetensors"
SLOT_FILES = "slot-*.safetensors*"
_HANDLE = "{name}.device"


def slots_of(where: str) -> FileSlots:
    return DeviceSlots() if is_on_device(where) else FileSlots()


class FileSlots:
    survive = True  # whether their memory outlives their writer, for the next one

    def check_room(self, folder: Path, count: int, layout: Layout) -> None:
        """Errors: `RltraceError` where so many do not fit."""
        check_room(folder, count * _slot_bytes(layout))

    def create(self, path: Path, layout: Layout) -> None:
        """Makes a slot with its header, whole or not at all. Errors: `RltraceError`: no room."""
        reserve(path, _slot_bytes(layout), layout.header)

    def map(self, path: Path, layout: Layout, writable: bool) -> Any:
        """A slot's data, mapped whole (a reader's read-only). Errors: `OSError`; `RltraceError`."""
        start = len(layout.header)
        fd = _opened(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            if os.fstat(fd).st_size < start + layout.bytes:
                said = f"{path} was cut: its weights are gone until a publisher opens anew"
                raise RltraceError(said)
            protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            kind = mmap.MAP_SHARED | mmap.MAP_POPULATE
            mapped = mmap.mmap(fd, start + layout.bytes, kind, protection)
        finally:
            os.close(fd)
        return np.frombuffer(mapped, dtype=np.uint8)[start:]

    def mend(self, path: Path, layout: Layout) -> None:
        """Writes the header anew where something has changed it. Errors: `OSError`."""
        if not self.stands(path, layout):
            with open(path, "r+b") as file:
                file.write(layout.header)

    def stands(self, path: Path, layout: Layout) -> bool:
        """Whether a slot's file begins as it was made, so that who reads it finds its tensors."""
        with open(_opened(path, os.O_RDONLY), "rb") as file:
            return file.read(len(layout.header)) == layout.header

    def wrong(self, data: Any, digests: Digests, workers: Workers) -> list[int]:
        wrong: list[int] = []

        def check(block: int) -> None:
            if digest_at(data, block) != digests.item(block):
                wrong.append(block)

        workers.each(range(len(digests)), check)
        return sorted(wrong)

    def close(self) -> None:
        """Lets go of what no array is over any more."""


class DeviceSlots(FileSlots):
    """Data is a tensor of bytes, rounded up to 8. Memory must not be freed while another process
    has it open: each locks the handle's file, and the owner keeps what is locked until later."""

    survive = False

    def __init__(self) -> None:
        self._device: Cuda | None = None
        self._mine: dict[Path, _Mine] = {}

    def check_room(self, folder: Path, count: int, layout: Layout) -> None:
        _free_kept()
        device, wanted = self._current(), count * layout.bytes
        if wanted > (free := device.free_bytes()):
            raise no_room(f"on {device.name}", wanted, free)

    def create(self, path: Path, layout: Layout) -> None:
        device = self._current()
        memory = device.allocate(_whole_words(layout.bytes))
        about = {"device": device.name, "handle": memory.handle.hex(), "bytes": len(memory.data)}
        file = path.with_name(_HANDLE.format(name=path.name))
        with or_else(memory.free):
            file.write_text(json.dumps(about), "utf-8")
            mine = _Mine(memory, os.open(file, os.O_RDWR | os.O_CLOEXEC))
            path.touch(mode=0o600)
        self._mine[path] = mine

    def map(self, path: Path, layout: Layout, writable: bool) -> Any:
        if writable:
            return self._mine[path].memory.data
        file = path.with_name(_HANDLE.format(name=path.name))
        lock = Lock.take(file, shared=True)
        if lock is None:
            raise RltraceError(f"{file} was removed while it was in use")
        with or_else(lock.release):
            return self._opened(file, layout, lock.release)

    def stands(self, path: Path, layout: Layout) -> bool:
        return True  # the file is empty

    def wrong(self, data: Any, digests: Digests, workers: Workers) -> list[int]:
        device = self._current()
        with device.queue(device.now()):
            found: list[int] = np.flatnonzero(device.digests(data) != digests).tolist()
        return found

    def close(self) -> None:
        _kept.extend(self._mine.values())
        self._mine.clear()
        _free_kept()

    def _current(self) -> Cuda:
        from rltrace.sync.device.device_memory import current_device

        self._device = self._device or current_device()
        return self._device

    def _opened(self, file: Path, layout: Layout, let_go: Callable[[], None]) -> Any:
        from rltrace.sync.device.device_memory import device_named

        try:
            about = parsed(file.read_text("utf-8"))
            name, size = str(about["device"]), int(about["bytes"])
            handle = bytes.fromhex(about["handle"])
        except (OSError, *NONSENSE) as error:
            raise RltraceError(f"{file} does not say where the weights lie: {error}") from error
        if size != _whole_words(layout.bytes):
            raise RltraceError(f"{file} is of other weights")
        if self._device is None or self._device.name != name:
            self._device = device_named(name)
        try:
            return self._device.open(handle, size, let_go)
        except RltraceError as error:
            said = f"the weights of {file.parent} have gone with their publisher ({error}): the"
            raise RltraceError(f"{said} next one has them again", CANNOT_TELL) from error


@dataclass
class _Mine:
    memory: DeviceMemory
    _fd: int
    _pid: int = field(default_factory=os.getpid)

    def free(self) -> bool:
        """Frees it unless another has it open; whether it did."""
        if self._pid != os.getpid():  # a forked child, which has no device
            return True
        # By its descriptor: the file may have lost its name.
        lock = Lock.take(Path(f"/proc/self/fd/{self._fd}"))
        if lock is None:
            return False
        Path(os.readlink(f"/proc/self/fd/{self._fd}")).unlink(missing_ok=True)
        self.memory.free()
        lock.release()
        os.close(self._fd)
        return True


_kept: list[_Mine] = []


def _free_kept() -> None:
    _kept[:] = [mine for mine in _kept if not mine.free()]


def _whole_words(size: int) -> int:
    return -(-size // 8) * 8


def slot_path(folder: Path, generation: int, slot: int) -> Path:
    """The file of one slot; those of another generation have another layout."""
    return folder / _NAME.format(generation=generation, slot=slot)


def _slot_bytes(layout: Layout) -> int:
    return len(layout.header) + layout.bytes


def _opened(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise RltraceError(f"{path} was removed while it was in use") from error
