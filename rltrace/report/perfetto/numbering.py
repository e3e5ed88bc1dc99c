"""Distinct values of columns, numbered: sorting a million rows to find ten values would be dear."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.report.perfetto.tracks import Ints

_DENSE = 4  # values a row: up to this a table of all values in between is cheaper than a sort


def factor(values: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """The distinct values of a column of integers, in order, and the place of each row's value."""
    if not len(values):
        return values, np.zeros(0, np.int64)
    low, high = int(values.min()), int(values.max())
    if high - low < _DENSE * len(values) + 1024:
        moved = np.subtract(values, low, dtype=np.int64)
        there = np.zeros(high - low + 1, np.bool_)
        there[moved] = True
        distinct = np.flatnonzero(there) + low
        return distinct, (np.cumsum(there) - 1)[moved]
    # Rows come in runs of one value, such as the spans of one lane.
    begins = np.append(0, np.flatnonzero(values[1:] != values[:-1]) + 1)
    heads = values[begins]
    distinct = np.unique(heads)
    lengths = np.diff(np.append(begins, len(values)))
    return distinct, np.repeat(np.searchsorted(distinct, heads), lengths)


def number(*keys: NDArray[Any]) -> tuple[Ints, Ints]:
    """Numbers 0, 1, ... for the distinct combinations of keys, in sorted order of the keys.

    Returns the number of every row, and the first row of every number.
    """
    distinct, dense = factor(keys[0])
    for key in keys[1:]:
        values, code = factor(key)
        distinct, dense = factor(dense * len(values) + code)
    first = np.zeros(len(distinct), np.int64)
    first[dense[::-1]] = np.arange(len(dense))[::-1]
    return dense, first
