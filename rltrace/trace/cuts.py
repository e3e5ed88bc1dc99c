"""Where a table is cut into parts: where steps begin, so that each part has about so many rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def cuts(sampled_ns: Ints, rows: int, starts_ns: Ints, part_rows: int) -> list[int]:
    """The moments at which a part ends and another begins. `sampled_ns` are starts of rows, evenly
    drawn, in order; `starts_ns` are those of steps, in order. A part of more rows than one step has
    ends where a step begins; where a step has more than a part may, it is cut within."""
    found: list[int] = []
    if rows <= part_rows or not len(sampled_ns):
        return found
    each = max(1, round(part_rows * len(sampled_ns) / rows))
    at = 0
    while at + each < len(sampled_ns):
        since, latest = int(sampled_ns[at]), int(sampled_ns[at + each])
        place = int(np.searchsorted(starts_ns, latest, side="right")) - 1
        cut = int(starts_ns[place]) if place >= 0 else latest
        if cut <= since or (found and cut <= found[-1]):
            cut = latest
        reached = int(np.searchsorted(sampled_ns, cut, side="left"))
        if reached <= at:  # all at one moment, which nothing cuts
            reached = int(np.searchsorted(sampled_ns, latest, side="right"))
            if reached >= len(sampled_ns):
                break
            cut = int(sampled_ns[reached])
        found.append(cut)
        at = reached
    return found
