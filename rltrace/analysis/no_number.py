"""Verdicts that are NaN because the job gave that, told from those that nobody knows.

An unknown float is a NaN of all ones in the trace; one that was computed, or written
`float("nan")`, has other bits. A group with such a verdict teaches nothing: its mean is NaN, and so
is the advantage of each of its samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.intervals import Bools
from rltrace.trace.vocabulary import Outcome

_UNKNOWN = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


def given_nan(value: NDArray[Any], outcome: NDArray[Any]) -> Bools:
    """Which verdicts of columns (`value` is float64) did not fail, and are a NaN that the job gave;
    `rltrace.trace.signals.GIVEN_NAN` is that in SQL."""
    bits = np.ascontiguousarray(value, np.float64).view(np.uint64)
    given: Bools = (outcome == Outcome.OK) & np.isnan(value) & (bits != _UNKNOWN)
    return given
