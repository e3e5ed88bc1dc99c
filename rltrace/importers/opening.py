"""Opening what is to be imported: what stops it is said in the same words for every format."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rltrace.trace.errors import RltraceError
from rltrace.trace.given_files import open_given

_START_BYTES = 4096
_FILLED = re.compile(rb"\S")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Within it, an OSError becomes the `RltraceError` that says why a log cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise RltraceError(f"{path} does not exist: give the log of a run") from None
    except OSError as error:
        raise RltraceError(f"{path} cannot be read: {error.strerror or error}") from None


def check_filled(path: Path, start: bytes) -> None:
    """Errors: `RltraceError` for a log that begins with these bytes, where they are none."""
    if not _FILLED.search(start, len(codecs.BOM_UTF8) * start.startswith(codecs.BOM_UTF8)):
        raise RltraceError(f"{path} is empty: there is nothing to import")


def start_of(path: Path) -> bytes:
    """The first bytes of a file. Errors: OSError."""
    with open_given(path) as file:
        return file.read(_START_BYTES)


def is_text(start: bytes) -> bool:
    """Whether a file that begins with these bytes may be one of lines."""
    return b"\0" not in start
