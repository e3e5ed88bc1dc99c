"""Parquet files of rows, as DuckDB writes them."""

from __future__ import annotations

import errno
import os
import re
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rltrace.trace.errors import RltraceError
from rltrace.trace.refused import first_line

if TYPE_CHECKING:
    import duckdb

_ROW_GROUP_ROWS = 200_000
_FEW_BYTES = 16 << 20
_NUMBER = re.compile(r'"errno":\s*"(\d{1,4})"')
_FULL = "No space left"


class Writer:
    """Writes files, while it is entered. What is small goes through one database, since to open one
    takes longer than to write it; what is not has one of its own, whose memory goes with it."""

    def __enter__(self) -> Writer:
        import duckdb

        self._few = duckdb.connect()
        return self

    def __exit__(self, *error: object) -> None:
        self._few.close()

    def write(self, rows: pa.Table, path: Path, order: str = "") -> None:
        """Writes rows as they are, or in the `order` of a column. Errors: OSError where the disk
        does not take them, `RltraceError` where DuckDB fails otherwise."""
        import duckdb

        temporary = path.with_suffix(".tmp")
        target = str(temporary).replace("'", "''")
        with self._database(rows) as database:
            database.execute("SET enable_progress_bar = false")
            database.register("rows", rows)
            ordered = f'FROM rows ORDER BY "{order}"' if order else "FROM rows"
            # A dictionary has one NaN for all, and what is unknown is one that is like no other.
            has_floats = any(pa.types.is_floating(kind) for kind in rows.schema.types)
            encoding = "DICTIONARY_SIZE_LIMIT 1, " if has_floats else ""
            try:
                database.execute(
                    f"COPY ({ordered}) TO '{target}' (FORMAT parquet, COMPRESSION zstd, "
                    f"{encoding}PARQUET_VERSION v2, ROW_GROUP_SIZE {_ROW_GROUP_ROWS})"
                )
            except duckdb.Error as error:
                temporary.unlink(missing_ok=True)
                raise _not_written(path, temporary, error) from None
            database.unregister("rows")
        os.replace(temporary, path)

    def _database(self, rows: pa.Table) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        import duckdb

        return duckdb.connect() if rows.nbytes > _FEW_BYTES else nullcontext(self._few)


def _not_written(path: Path, temporary: Path, error: duckdb.Error) -> Exception:
    """What went wrong where DuckDB did not write a file, of which it tells the system's number."""
    said = str(error)
    if temporary.name in said and (number := _NUMBER.search(said)):
        return OSError(int(number[1]), os.strerror(int(number[1])), str(path))
    if temporary.name in said and _FULL in said:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    if "offload" in said or "temp_directory" in said:
        return RltraceError(
            f"cannot write {path}: its rows are ordered first, for which neither memory nor the "
            "working directory has room: compact from a directory with room"
        )
    return RltraceError(f"cannot write {path}: {first_line(error)}")
