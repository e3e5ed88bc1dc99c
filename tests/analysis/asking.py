"""Asking one of the queries that come with rltrace."""

from __future__ import annotations

from typing import Any

from rltrace.testing.inside.report import named_query
from rltrace.testing.inside.trace import OpenedRun as Run


def ask(run: Run, name: str) -> list[dict[str, Any]]:
    """The rows of a query, by column."""
    relation = run.sql(named_query(name).sql)
    return [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]


def told(run: Run, name: str, columns: str) -> list[tuple[Any, ...]]:
    """These columns, with spaces between them, of the rows of a query."""
    return [tuple(row[column] for column in columns.split()) for row in ask(run, name)]
