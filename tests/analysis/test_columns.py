"""Rows that are alike, against a dictionary of them."""

from __future__ import annotations

import numpy as np
import pytest

from rltrace.analysis.columns import numbered


@pytest.mark.parametrize("n", [0, 1, 200])
def test_rows_that_are_alike_have_one_number(n: int) -> None:
    rng = np.random.default_rng(n)
    ids = np.array([-(2**62), -1, 0, 7, 2**62], np.int64)
    one, other = ids[rng.integers(0, 5, n)], rng.integers(-2, 2, n)
    number, first = numbered(one, other)
    rows = list(zip(one.tolist(), other.tolist(), strict=True))
    alike = {row: place for place, row in enumerate(sorted(set(rows)))}
    assert number.tolist() == [alike[row] for row in rows]
    assert first.tolist() == [rows.index(row) for row in alike]
