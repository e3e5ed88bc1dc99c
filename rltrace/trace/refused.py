"""What is said of a query that does not run, and which may."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rltrace.trace.errors import INTERRUPTED, NO_MEMORY, RltraceError, WrongUsage, did_you_mean
from rltrace.trace.schema import TABLES
from rltrace.trace.views import NAMED

if TYPE_CHECKING:
    import duckdb

_TABLES = sorted(name for name in NAMED if not name.startswith("raw_"))
_COLUMN = re.compile(
    r'column "([^"]+)".* (?:not found|does not exist)|not have a column named "([^"]+)"',
    re.IGNORECASE,
)
"""How DuckDB says that there is no such column."""
_IO = "IO Error: "
_SPILLED = re.compile(r"\.tmp\b|temp_directory|create directory|No space left|disk full", re.I)
"""How DuckDB says that there is no room for what does not fit into memory."""
_EXTENSION = re.compile(r"install the required extension '(\w+)")
"""How DuckDB says that a query needs an extension, which it may not install."""
_NO_FILES = "No files found"
NO_ROOM = (
    "this takes more memory than there is, and the working directory has no room for the rest: ask "
    "of fewer steps, or from a directory with room"
)
_ASKED = re.compile(r'(?:\bfrom\b|\bjoin\b|,)\s*(?:main\.)?"?(\w+)', re.IGNORECASE)


def first_line(error: Exception) -> str:
    """What DuckDB says, without its advice, which is on settings that nobody can set here."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")


def failed(error: duckdb.Error) -> RltraceError | None:
    """One sentence on what DuckDB could not do for want of memory or room, because it was
    interrupted, or a file is damaged; None for an error of which the query is the cause."""
    import duckdb

    said = first_line(error)
    if isinstance(error, duckdb.InterruptException):
        return RltraceError("interrupted", INTERRUPTED)
    if isinstance(error, duckdb.OutOfMemoryException):
        return RltraceError(NO_ROOM if "offload" in said else NO_MEMORY)
    if isinstance(error, duckdb.IOException) and _SPILLED.search(said):
        return RltraceError(f"{NO_ROOM} ({said.removeprefix(_IO)})")
    is_query = isinstance(error, duckdb.IOException) and _NO_FILES in said
    if (isinstance(error, _of_files()) and not is_query) or type(error) is duckdb.Error:
        return RltraceError(f"a file of the run is damaged: {said.removeprefix(_IO)}")
    return None


def _of_files() -> tuple[type[Exception], ...]:
    import duckdb

    return (duckdb.IOException, duckdb.SerializationException, duckdb.InternalException)


def refused(error: duckdb.Error, query: str, database: duckdb.DuckDBPyConnection) -> RltraceError:
    """One sentence on a query that `database` did not run, which names the columns that there are
    where it asks for another, and else the tables."""
    import duckdb

    said = first_line(error)
    if (needed := _EXTENSION.search(said)) is not None:
        message = f"a query loads no extension, and this one needs {needed[1]!r}"
        return WrongUsage(message)
    if (instead := failed(error)) is not None:
        return instead
    if isinstance(error, duckdb.PermissionException):
        said = said.partition(": ")[2].partition(" - ")[0]
        message = f"a query reads the tables of its run and nothing else: {said}"
        return WrongUsage(message)
    missing, columns = _COLUMN.search(said), _columns(query, database)
    if isinstance(error, duckdb.BinderException) and missing and columns:
        name = missing[1] or missing[2]
        quoted = "; text stands in single quotes" if f'"{name}"' in query else ""
        near = did_you_mean(name, *(one for names in columns.values() for one in names))
        there = "; ".join(f"{table} has {', '.join(names)}" for table, names in columns.items())
        said = f"it finds no column {name!r}{near} ({there}{quoted})"
    else:
        asked = (word for word in _ASKED.findall(query) if word.lower() not in NAMED)
        near = next(filter(None, (did_you_mean(word, *_TABLES) for word in asked)), "")
        said = f"{said}{near} (tables: {', '.join(_TABLES)})"
    return WrongUsage(f"the query does not run: {said}")


def _columns(query: str, database: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """The columns of each table that a query names, in the order of the query."""
    known = {*NAMED, *(f"raw_{name}" for name in TABLES)}
    named = dict.fromkeys(word.lower() for word in _ASKED.findall(query))
    return {name: database.table(name).columns for name in named if name in known}


# --- which statements only ask: a query of a run reads, and changes nothing

_GAP = r"(?:\s|--[^\n]*(?:\n|\Z)|/\*(?:[^*]|\*(?!/))*\*/)*"
"""Blanks and comments, each in one way only, so that none of them takes for ever."""
_FIRST_WORD = re.compile(
    rf"{_GAP}(?:explain\b{_GAP}(?:(?:analyze\b|\([^)]*\)){_GAP})?)?(\w+|\()", re.IGNORECASE
)
"""Of a statement, or of the one that is explained, which `EXPLAIN ANALYZE` runs."""
_ASKING = (
    *("(", "select", "from", "with", "values", "table", "pivot", "unpivot"),
    *("show", "describe", "desc", "summarize", "pragma", "call"),
)
_IMPORT = re.compile(rf"\b(import){_GAP}\bdatabase\b", re.IGNORECASE)
_LOGGING = re.compile(r"\benable_logging\b", re.IGNORECASE)
"""A function that answers with rows and sets something; with DuckDB 1 in a locked database, too,
where a file that it may not have aborts the process later on."""


def only_asks(query: str) -> None:
    """Errors: `RltraceError` for a statement that is none of those which answer with rows."""
    import duckdb

    # Before DuckDB sees it: to tell its statements DuckDB 1 reads the files of an IMPORT DATABASE.
    if (bringing := _IMPORT.search(query)) is not None:
        raise _not_asking(bringing[1])
    if _LOGGING.search(query):
        raise WrongUsage("a query only reads: enable_logging changes settings")
    kinds = duckdb.StatementType
    asking = (kinds.SELECT, kinds.EXPLAIN, kinds.PRAGMA, kinds.CALL, kinds.MULTI)
    for statement in duckdb.extract_statements(query):
        found = _FIRST_WORD.match(statement.query)
        word = found[1] if found else statement.query
        try:
            asks = statement.type in asking
        except ValueError:  # DuckDB knows more kinds than its module for Python
            asks = False
        if not asks or word.lower() not in _ASKING:
            raise _not_asking(word)


def _not_asking(word: str) -> RltraceError:
    return WrongUsage(f"a query only reads: give a SELECT, not {word.upper()}")
