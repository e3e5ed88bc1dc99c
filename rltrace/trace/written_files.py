"""The files that a user names to be written: a pipe or a device takes what a file would.

Only a regular file may be replaced or cut short: whoever renames a new file over /dev/null, which
root may do, breaks every program of the machine. Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_REFUSED = ((stat.S_ISSOCK, "a socket"), (stat.S_ISBLK, "a disk"))


def open_to_append(path: str | Path) -> BinaryIO:
    """What a user named, open to be written after its end. Errors: as `open_as_it_is`."""
    return open_as_it_is(path) or open(path, "ab")


@contextmanager
def written(path: str | Path) -> Iterator[BinaryIO]:
    """What a user named, to be written from its beginning. A file takes its place only once it is
    whole: what was there before is replaced then, or left as it is, and a link to it goes on
    leading there. What is no file, as a pipe or a device, is written to at once. Errors: OSError,
    whose `strerror` says what stands there instead of a file, or why it cannot be written."""
    as_it_is = open_as_it_is(path)
    if as_it_is is None:
        with _replaced(Path(os.path.realpath(path))) as file:
            yield file
    else:
        with as_it_is as file:
            yield file


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    part = path.with_name(path.name + ".part")
    try:
        part.unlink(missing_ok=True)  # of one that was killed; a link would be written through
        with part.open("xb") as file:
            with suppress(OSError):  # a new file; or another user's, who lets this one write it
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            yield file
        os.replace(part, path)
    finally:
        with suppress(OSError):  # where nothing can be written, there is nothing to remove
            part.unlink(missing_ok=True)


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
