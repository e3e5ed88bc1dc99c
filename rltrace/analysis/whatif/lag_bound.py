"""How old samples may become in a run, and what is done with those that are older."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rltrace.analysis.whatif.parts import Parts, starts_s
from rltrace.analysis.whatif.run_samples import Samples

if TYPE_CHECKING:
    from rltrace.trace.run import Run


def lag_bound(run: Run, parts: Parts, placement: str, samples: Samples) -> float:
    """The bound in versions that a process states, else the largest lag that came: where nobody
    tells a version, the most steps from the beginning of a sample to its use. A bound that nothing
    keeps to, as no samples lag in this placement, is none: a job that becomes asynchronous gets
    1."""
    bounds = [1.0, float(parts.staleness.largest_lag)]
    if placement == "async" and not parts.staleness.known:
        bounds.append(float(samples.steps_until_used(starts_s(parts)).max(initial=0)))
    return max(bounds + (stated_bounds(run) if placement == "async" else []))


def stated_bounds(run: Run) -> list[float]:
    """The bounds that processes state, in versions."""
    settings = [process.facts.get("settings") for process in run.processes]
    found = [one.get("max_lag") for one in settings if isinstance(one, dict)]
    return [float(x) for x in found if isinstance(x, int | float) and math.isfinite(x)]


def drops_stale(run: Run, parts: Parts, placement: str) -> bool | None:
    """Whether samples older than the bound are dropped: where the trainer states it, where some
    were, and where none were though they could have been."""
    for process in run.processes:
        stated = process.facts.get("drops_stale")
        if isinstance(stated, bool):
            return stated
    if parts.goodput is not None and any(x.reason == "stale" for x in parts.goodput.losses):
        return True
    return False if placement == "async" else None
