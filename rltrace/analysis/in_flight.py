"""How many trajectories were being generated at once, as the run went on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rltrace.trace.run import Run


def in_flight(run: Run, since_ns: int, until_ns: int, parts: int) -> NDArray[np.float64]:
    """The mean number of trajectories in flight in each of `parts` equal parts of the time between
    two moments (Unix ns); one that never ended is in none. Empty where no trajectory was in any."""
    rows = run.ask_columns(
        "select start_ns, end_ns from raw_trajectories where start_ns > 0 and end_ns > start_ns "
        f"and end_ns > {since_ns} and start_ns < {until_ns}"
    )
    start, end = (np.asarray(rows[name], np.int64) - since_ns for name in ("start_ns", "end_ns"))
    if not len(start):
        return np.zeros(0)
    edges = np.linspace(0, until_ns - since_ns, parts + 1)
    spent = _spent_before(end, edges) - _spent_before(start, edges)
    flying: NDArray[np.float64] = -np.diff(spent) / np.diff(edges)
    return flying.clip(0)


def _spent_before(moments: NDArray[np.int64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each edge the sum over moments before it of how long they lie back."""
    ordered = np.sort(moments).astype(np.float64)
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    count = np.searchsorted(ordered, edges)
    before: NDArray[np.float64] = count * edges - total[count]
    return before
