"""Locks on files that the kernel frees when their holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from weakref import WeakSet


class Lock:
    """A lock on a file, held until `release()`. Each has a descriptor of its own, so two holders in
    one process exclude each other like two processes do. A forked child holds none of them."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _held.add(self)

    @staticmethod
    def take(path: Path, shared: bool = False, wait: bool = False) -> Lock | None:
        """None where it is held by others (unless `wait`) or there is no such file."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(fd, kind if wait else kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return Lock(fd)

    def is_of(self, path: Path) -> bool:
        """Whether it is of the file that has that name now: who has waited for a lock may have got
        that of a file which its last holder removed."""
        try:
            return os.path.samestat(os.fstat(self.fd), os.stat(path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Frees the lock; once is enough."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            _held.discard(self)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_held: WeakSet[Lock] = WeakSet()


def _forget() -> None:
    """In a forked child: its copies of the descriptors would keep the locks of a dead parent."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget)
