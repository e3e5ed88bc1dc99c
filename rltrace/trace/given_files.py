"""The files that a user names: read only where they have an end.

A pipe that nobody writes to, a socket or a terminal has nothing to read for ever, and some devices
have without end. Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rltrace.trace.own_files import MOST_TEXT_BYTES

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_given(path: str | Path) -> BinaryIO:
    """A file, open to be read, and read again from its beginning. Errors: OSError, whose `strerror`
    says what else it is."""
    _check(path, os.stat(path).st_mode)
    return open(path, "rb")


def read_given(path: str | Path) -> bytes:
    """What a file holds, or a pipe of the shell's (`<(...)`, /dev/stdin). Errors: OSError."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISFIFO(mode) and _has_no_name(path)):
        _check(path, mode)
    with open(path, "rb") as file:
        return file.read()


def text_given(path: str | Path) -> str:
    """The same as a text. Errors: OSError, also where it is longer than any text is: a hole of a
    hundred gigabytes is made at no cost; UnicodeDecodeError, a ValueError, where it is none."""
    if os.stat(path).st_size > MOST_TEXT_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MOST_TEXT_BYTES >> 20} MiB", str(path))
    return read_given(path).decode("utf-8")


def _check(path: str | Path, mode: int) -> None:
    """Errors: OSError for what is neither a file nor a folder: opening a folder is one itself."""
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))


def _has_no_name(path: str | Path) -> bool:
    """Whether a pipe is in no folder: whoever made it has opened both its ends."""
    return not os.path.exists(os.path.realpath(path))


# --- The files that a user names to be written: a pipe or a device takes what a file would.
#
# Only a regular file may be replaced or cut short: whoever renames a new file over /dev/null,
# which root may do, breaks every program of the machine. Standard library only.

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
