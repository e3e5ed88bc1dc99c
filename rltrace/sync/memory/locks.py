"""Locks on files that the kernel frees when their holder dies.

They are open file description locks: two holders in one process exclude each other, too, and
whether one is held can be asked without taking it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

from rltrace.trace.errors import CANNOT_TELL, RltraceError

_Self = TypeVar("_Self", bound="Closing")
_POLL_S = 0.0005
_PATIENCE_S = 5.0
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length (0: all), pid


class Lock(AbstractContextManager["Lock"]):
    """A lock on a file, held until `release()`. A forked child holds none of its parent's."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _held.add(self)

    @staticmethod
    def take(path: Path, shared: bool = False, wait_s: float = 0.0) -> Lock | None:
        """None where others hold it for longer than `wait_s` (they may be stopped), there is no
        such file, or its last holder has removed it meanwhile."""
        try:
            fd = os.open(path, (os.O_RDONLY if shared else os.O_RDWR) | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        wanted = _FLOCK.pack(fcntl.F_RDLCK if shared else fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        lock, deadline = Lock(fd), time.monotonic() + wait_s
        with or_else(lock.release):
            while True:
                try:
                    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)
                    break
                except (BlockingIOError, PermissionError):  # POSIX allows either
                    if time.monotonic() >= deadline:
                        lock.release()
                        return None
                    time.sleep(_POLL_S)
            if lock.is_of(path):
                return lock
        lock.release()
        return None

    @staticmethod
    def is_held(path: Path) -> bool:
        """Whether somebody has a lock on the file, shared or not."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            found = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
        finally:
            os.close(fd)
        return bool(found[0] != fcntl.F_UNLCK)

    def is_of(self, path: Path) -> bool:
        """Whether it is of the file that has that name now."""
        try:
            return os.path.samestat(os.fstat(self.fd), os.stat(path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            _held.discard(self)

    def __exit__(self, *_: object) -> None:
        self.release()


def hold(path: Path, make: Callable[[], None]) -> Lock:
    """A shared lock on a file that `make` makes, and that its only holder may remove meanwhile.
    Errors: `OSError`; `RltraceError` where a stopped process has the removal half done."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        make()
        lock = Lock.take(path, True, deadline - time.monotonic())
        if lock is not None:
            return lock
        if time.monotonic() >= deadline:
            said = f"a process that does not go on holds {path}"
            raise RltraceError(f"{said}: end it (`rltrace sync ls` names it)", CANNOT_TELL)


class Closing(ABC):
    @abstractmethod
    def close(self) -> None:
        """Lets go."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def or_else(undo: Callable[[], object]) -> Iterator[None]:
    """Undoes what was done before, where something within fails, whatever it is."""
    try:
        yield
    except BaseException:
        undo()
        raise


_held: WeakSet[Lock] = WeakSet()


def _forget() -> None:
    """In a forked child: its copies of the descriptors would keep the locks of a dead parent."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget)
