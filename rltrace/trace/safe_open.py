"""Opens files of a run for writing, never as a standard stream, never through a link.

A job may have closed its standard streams and still write to their numbers; another user may have
put a link, or a pipe that nobody reads, where a file of the run belongs. Standard library only.
"""

from __future__ import annotations

import os

from rltrace.trace.job_exceptions import contained

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # else opening a pipe waits for its reader
_ROOT = "/"
_PLACE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC
"""Takes a number so that nobody else gets it: reads and writes there fail as before."""
_LAST_STREAM = 2


class opened:
    """`with opened(path, flags) as file:` is a descriptor of that very file. Until it is closed
    none of the numbers 0 to 2 is free, so that a map, which has a descriptor of its own before
    Python 3.13, gets none either. Errors: OSError; ELOOP where a link stands there."""

    __slots__ = ("_asked", "_numbers")

    def __init__(self, path: str | os.PathLike[str], flags: int, mode: int = 0o644) -> None:
        self._asked = path, flags | _FLAGS, mode
        self._numbers: list[int] = []

    def __enter__(self) -> int:
        while (number := os.open(_ROOT, _PLACE)) <= _LAST_STREAM:
            self._numbers.append(number)
        os.close(number)
        try:
            number = os.open(*self._asked)
        except BaseException:
            self.__exit__()
            raise
        self._numbers.append(number)
        return number

    def __exit__(self, *_: object) -> None:
        for number in reversed(self._numbers):
            if number > _LAST_STREAM or _is_place(number):
                os.close(number)


def opener(path: str, flags: int) -> int:
    """For `open`, in a process of ours, which has its standard streams. Errors: as `opened`."""
    return os.open(path, flags | _FLAGS, 0o644)


def _is_place(number: int) -> bool:
    """Whether we still hold a number: another thread may have made it a stream meanwhile."""
    with contained(OSError):
        return os.path.samestat(os.fstat(number), os.stat(_ROOT))
    return False


class alone:
    """Commands write into a folder one after the other. Errors: OSError without such a folder."""

    __slots__ = ("_file", "_folder")

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        import fcntl

        self._file = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            with contained(OSError):  # a filesystem that has no locks
                fcntl.flock(self._file, fcntl.LOCK_EX)
        except BaseException:
            os.close(self._file)
            raise

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
