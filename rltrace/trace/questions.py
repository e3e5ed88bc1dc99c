"""Which statements of SQL only ask: a query of a run reads, and changes nothing."""

from __future__ import annotations

import re

from rltrace.trace.errors import WRONG_USAGE, RltraceError

_GAP = r"(?:\s|--[^\n]*|/\*.*?\*/)*"
_FIRST_WORD = re.compile(
    rf"{_GAP}(?:explain\b{_GAP}(?:analyze\b|\([^)]*\))?)?{_GAP}(\w+|\()", re.DOTALL | re.IGNORECASE
)
"""Of a statement, or of the one that is explained, which `EXPLAIN ANALYZE` runs."""
_ASKING = (
    *("(", "select", "from", "with", "values", "table", "pivot", "unpivot"),
    *("show", "describe", "desc", "summarize", "pragma", "call"),
)


def only_asks(query: str) -> None:
    """Errors: `RltraceError` for a statement that is none of those which answer with rows."""
    import duckdb

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
            message = f"a query only reads: give a SELECT, not {word.upper()}"
            raise RltraceError(message, WRONG_USAGE)
