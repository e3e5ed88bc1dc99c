"""A compacted run whose segments were deleted, read at once as if it had been followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rltrace.trace.errors import RltraceError
from rltrace.trace.manifest import Manifest
from rltrace.trace.schema import TABLES


def table_columns(manifest: Manifest, table: str) -> dict[str, NDArray[Any]]:
    """The columns of a table, `process` among them. Errors: `RltraceError` where it is none."""
    paths = [part.path for part in manifest.tables[table]]
    rows = _read(*paths)
    try:
        columns = {c.name: rows[c.name].to_numpy().astype(c.kind) for c in TABLES[table].columns}
        return {**columns, "process": rows["process"].to_numpy().astype("i")}
    except (KeyError, ValueError, TypeError) as error:
        raise RltraceError(f"{paths[0].parent} cannot be read: {error}") from None


def name_texts(manifest: Manifest) -> list[str]:
    """The text of each name id. Errors: as `table_columns`."""
    rows = _read(manifest.names)
    try:
        texts = dict(zip(rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True))
        names = [str(texts[number]) for number in range(len(texts))]  # they have no gaps
    except (KeyError, TypeError):
        raise RltraceError(f"{manifest.names} holds no names") from None
    return names


def _read(*paths: Path) -> Any:
    from pyarrow import ArrowException, parquet  # 0.1 s, and runs that are followed have none

    try:
        return parquet.read_table(list(paths))
    except (OSError, ArrowException) as error:
        raise RltraceError(f"{paths[0]} cannot be read: {error}") from None
