"""A compacted run whose segments were deleted, read at once as if it had been followed."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from rltrace.trace.manifest import Manifest


def table_columns(manifest: Manifest, table: str) -> dict[str, NDArray[Any]]:
    """The columns of a table, `process` among them. Errors: OSError, pyarrow's own."""
    from pyarrow import parquet  # 0.1 s, and runs that are followed have no Parquet

    rows = parquet.read_table(manifest.tables[table])
    return {name: rows[name].to_numpy() for name in rows.column_names}


def name_texts(manifest: Manifest) -> list[str]:
    """The text of each name id. Errors: as `table_columns`."""
    from pyarrow import parquet

    columns = parquet.read_table(manifest.names).to_pydict()
    texts = dict(zip(columns["id"], columns["text"], strict=True))
    return [texts.get(number, "?") for number in range(max(texts, default=-1) + 1)]
