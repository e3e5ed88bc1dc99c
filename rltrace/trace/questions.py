"""Which statements of SQL only ask: a query of a run reads, and changes nothing."""

from __future__ import annotations

import re

from rltrace.trace.errors import RltraceError, WrongUsage

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
