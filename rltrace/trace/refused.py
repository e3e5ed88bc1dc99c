"""What is said of a query that does not run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rltrace.trace.errors import WRONG_USAGE, RltraceError
from rltrace.trace.views import BASES

if TYPE_CHECKING:
    import duckdb

_TABLES = (*sorted(name for name in BASES if not name.startswith("raw_")), "processes", "names")
_COLUMN = re.compile(
    r'column "([^"]+)".* (?:not found|does not exist)|not have a column named "([^"]+)"',
    re.IGNORECASE,
)
"""How DuckDB says that there is no such column."""
_ASKED = re.compile(r'(?:\bfrom\b|\bjoin\b|,)\s*(?:main\.)?"?(\w+)', re.IGNORECASE)


def refused(error: duckdb.Error, query: str, database: duckdb.DuckDBPyConnection) -> RltraceError:
    """One sentence on a query that `database` did not run, which names the columns that there are
    where it asks for another, and else the tables."""
    import duckdb

    said = str(error).strip().splitlines()[0]
    if isinstance(error, duckdb.PermissionException):
        said = said.partition(": ")[2].partition(" - ")[0]
        message = f"a query reads the tables of its run and nothing else: {said}"
        return RltraceError(message, WRONG_USAGE)
    missing, columns = _COLUMN.search(said), _columns(query, database)
    if isinstance(error, duckdb.BinderException) and missing and columns:
        name = missing[1] or missing[2]
        quoted = "; text stands in single quotes" if f'"{name}"' in query else ""
        said = f"it finds no column {name!r} ({'; '.join(columns)}{quoted})"
    else:
        said = f"{said} (tables: {', '.join(_TABLES)})"
    return RltraceError(f"the query does not run: {said}", WRONG_USAGE)


def _columns(query: str, database: duckdb.DuckDBPyConnection) -> list[str]:
    """What each table has that a query names, in the order of the query."""
    known = {*BASES, "processes", "names", "dropped_steps"}
    named = dict.fromkeys(word.lower() for word in _ASKED.findall(query))
    return [
        f"{name} has {', '.join(database.table(name).columns)}" for name in named if name in known
    ]
