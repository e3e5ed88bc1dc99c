"""Writing a file that takes its place only once it is whole."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, cast

from rltrace.trace.errors import UNREADABLE, RltraceError
from rltrace.trace.untrusted_files import written


@contextmanager
def whole_file(path: Path, what: str) -> Iterator[BinaryIO]:
    """The file to write, gzipped where its name ends in `.gz`. Errors: `RltraceError` on `what`."""
    try:
        with written(path) as plain:
            packs = path.name.endswith(".gz")
            # Level 1: a third larger than level 9 and ten times quicker.
            packed = gzip.GzipFile("", "wb", 1, plain, mtime=0) if packs else nullcontext(plain)
            with packed as file:
                yield cast(BinaryIO, file)
    except OSError as error:
        said = f"cannot write {what} to {path}: {error.strerror or error}"
        raise RltraceError(f"{said}; choose another place with -o", UNREADABLE) from error
