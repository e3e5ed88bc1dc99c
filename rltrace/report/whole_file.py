"""Writing a file that takes its place only once it is whole."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from rltrace.trace.errors import UNREADABLE, RltraceError


@contextmanager
def whole_file(path: Path, what: str) -> Iterator[BinaryIO]:
    """The file to write, gzipped where the name ends in `.gz`; a file that is there already is
    replaced at the end, or left as it is. Errors: `RltraceError`, which calls it `what`, where
    nothing can be written there."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as plain:
            if path.name.endswith(".gz"):
                # Level 1: a third larger than level 9 and ten times quicker.
                with gzip.GzipFile("", "wb", 1, plain, mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield plain
        os.replace(part, path)
    except OSError as error:
        raise RltraceError(
            f"cannot write {what} to {path}: {error.strerror or error}; "
            "choose another place with -o",
            UNREADABLE,
        ) from error
    finally:
        with suppress(OSError):  # where nothing can be written, there is nothing to remove
            part.unlink(missing_ok=True)
