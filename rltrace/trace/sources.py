"""Files in the words of SQL."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def parquet_of(paths: Iterable[Path]) -> str:
    """The rows of Parquet files, one after the other."""
    return f"read_parquet([{', '.join(map(quoted, paths))}])"


def quoted(path: Path) -> str:
    """A path as a literal."""
    return "'" + str(path).replace("'", "''") + "'"
