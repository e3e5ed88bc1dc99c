"""The files that a user names: read only where they have an end.

A pipe that nobody writes to, a socket or a terminal has nothing to read for ever, and some devices
have without end. Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
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
