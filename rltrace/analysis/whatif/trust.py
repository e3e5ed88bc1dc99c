"""Whether the replay of a run is near enough to it to tell what a change would gain."""

from __future__ import annotations

import math

from rltrace.analysis.whatif.workload import Workload
from rltrace.trace.errors import CANNOT_TELL, RltraceError

MOST_ERROR = 0.3
"""A replay that misses the measured step by more, either way, has another idea of who waits for
whom than the job had: a fit would hide that, and no range was ever held against such a one. Those
that were (docs/whatif.md) missed by 8 % at the most, with ranges of 11 % and more."""


class OffTheRun(RltraceError):
    """The replay is not the run's: it predicts nothing."""

    def __init__(self, load: Workload) -> None:
        why = f"the replay of this run is off {_by(load)}"
        if not load.engine.sure:
            why = "whether a sample keeps its place at its worker while its tool works is not known"
        super().__init__(
            f"cannot be predicted: {why}; trying it would tell (`rltrace experiment`)", CANNOT_TELL
        )


def is_off(load: Workload) -> bool:
    """Whether the replay of the run as it was, before any fit, misses its steps by too much, or
    nobody knows for what its samples waited."""
    missed = abs(math.expm1(load.model_error)) > MOST_ERROR
    return bool(load.steps) and (missed or not load.engine.sure)


def replay_error(load: Workload) -> float:
    """Replayed over measured step before any fit, minus 1; NaN where no step was measured, or only
    the stage seconds that the replay is made of."""
    return math.expm1(load.model_error) if load.steps else math.nan


def _by(load: Workload) -> str:
    factor = math.exp(abs(load.model_error))
    way = "long" if load.model_error > 0 else "short"
    if factor < 2:
        return f"by {100 * math.expm1(load.model_error):+.0f} %"
    return f"by a factor of {factor:.2g} (its steps are too {way})"
