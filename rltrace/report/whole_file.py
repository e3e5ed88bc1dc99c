"""Writing a file that takes its place only once it is whole."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from rltrace.trace.errors import UNREADABLE, RltraceError
from rltrace.trace.written_files import open_as_it_is


@contextmanager
def whole_file(path: Path, what: str) -> Iterator[BinaryIO]:
    """The file to write, gzipped where the name ends in `.gz`; a file that is there already is
    replaced at the end, or left as it is, and a link to it goes on leading there. What is no file,
    as a pipe or a device, is written to at once. Errors: `RltraceError`, which calls it `what`,
    where nothing can be written there."""
    try:
        as_it_is = open_as_it_is(path)
        if as_it_is is None:
            with _replaced(Path(os.path.realpath(path))) as plain, _packed(path, plain) as file:
                yield file
        else:
            with as_it_is, _packed(path, as_it_is) as file:
                yield file
    except OSError as error:
        raise RltraceError(
            f"cannot write {what} to {path}: {error.strerror or error}; "
            "choose another place with -o",
            UNREADABLE,
        ) from error


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as plain:
            yield plain
        os.replace(part, path)
    finally:
        with suppress(OSError):  # where nothing can be written, there is nothing to remove
            part.unlink(missing_ok=True)


@contextmanager
def _packed(path: Path, plain: BinaryIO) -> Iterator[BinaryIO]:
    if not path.name.endswith(".gz"):
        yield plain
        return
    # Level 1: a third larger than level 9 and ten times quicker.
    with gzip.GzipFile("", "wb", 1, plain, mtime=0) as packed:
        yield cast(BinaryIO, packed)
