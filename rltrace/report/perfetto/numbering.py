"""Distinct values of columns, numbered: sorting a million rows to find ten values would be dear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rltrace.report.perfetto.tracks import Ints

_DENSE = 4  # values a row: up to this a table of all values in between is cheaper than a hash


def factor(values: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """The distinct values of a column of integers, in order, and the place of each row's value."""
    if not len(values):
        return values, np.zeros(0, np.int64)
    low, high = int(values.min()), int(values.max())
    if high - low < _DENSE * len(values) + 1024:
        moved = values.astype(np.int64) - low
        there = np.zeros(high - low + 1, np.bool_)
        there[moved] = True
        distinct = np.flatnonzero(there) + low
        return distinct, (np.cumsum(there) - 1)[moved]
    encoded = pa.array(values).dictionary_encode()
    found = encoded.dictionary.to_numpy(zero_copy_only=False)
    order = np.argsort(found)
    place = np.empty(len(found), np.int64)
    place[order] = np.arange(len(found))
    return found[order], place[encoded.indices.to_numpy(zero_copy_only=False)]


def number(*keys: NDArray[Any]) -> tuple[Ints, Ints]:
    """Numbers 0, 1, ... for the distinct combinations of keys, in sorted order of the keys.

    Returns the number of every row, and the first row of every number.
    """
    dense, count = np.zeros(len(keys[0]), np.int64), 1
    for key in keys:
        values, code = factor(key)
        distinct, dense = factor(dense * max(len(values), 1) + code)
        count = len(distinct)
    first = np.zeros(count if len(dense) else 0, np.int64)
    first[dense[::-1]] = np.arange(len(dense))[::-1]
    return dense, first
