"""The files that a user names to be written: a pipe or a device takes what a file would.

Only a regular file may be replaced or cut short: whoever renames a new file over /dev/null, which
root may do, breaks every program of the machine. Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_REFUSED = ((stat.S_ISSOCK, "a socket"), (stat.S_ISBLK, "a disk"))


def open_written(path: str | Path, append: bool = False) -> BinaryIO:
    """What a user named, open to be written from its beginning, or after its end. Errors: OSError,
    whose `strerror` says what stands there instead of a file."""
    return open_as_it_is(path) or open(path, "ab" if append else "wb")


def open_as_it_is(path: str | Path) -> BinaryIO | None:
    """What stands there and can be written to, but not replaced: a pipe, a device, what this
    process prints to. None for any other file, and where there is nothing yet. Errors: OSError for
    what takes nothing."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    for number in (1, 2):
        with suppress(OSError):  # the job that called us may have closed it
            if os.path.samestat(os.fstat(number), status):
                # Opened anew, a file would be written from its beginning by both.
                return os.fdopen(os.dup(number), "wb")
    if stat.S_ISREG(status.st_mode):
        return None
    for is_kind, kind in _REFUSED:
        if is_kind(status.st_mode):
            raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
    return _open_special(path, stat.S_ISFIFO(status.st_mode))


def _open_special(path: str | Path, is_pipe: bool) -> BinaryIO:
    try:
        # Without a reader, opening a pipe would wait for one, perhaps for ever.
        file = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if not is_pipe or error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "nobody reads the pipe", str(path)) from None
    os.set_blocking(file, True)
    return os.fdopen(file, "wb")
