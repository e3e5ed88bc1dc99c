"""Columns that count: nothing in them is below zero, whatever a program said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rltrace.trace.schema import Table

COUNTS = (
    *("tokens", "bytes", "items", "prompt_tokens", "response_tokens", "turns", "env_ns"),
    *("preemptions", "stall_ns", "wire_bytes", "buckets"),
)
"""Columns of which no value is below zero, but -1 for an unknown one."""


def make_unknown(table: Table, columns: list[np.ndarray[Any, Any]]) -> Iterator[tuple[str, int]]:
    """Replaces counts below zero by -1 in `columns`, those of `table` in order; gives the name of
    each column that had some, and how many."""
    for i, column in enumerate(table.columns):
        if column.name in COUNTS and columns[i].min(initial=0) < -1:
            below = columns[i] < -1
            columns[i] = np.where(below, columns[i].dtype.type(-1), columns[i])
            yield column.name, int(below.sum())
