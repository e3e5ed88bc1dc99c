"""Single steps that stall, cut to what is usual.

On a shared machine a step now and then takes half as long again, and a few of them are most of the
noise of a mean. A slowdown of the code is in all steps. So both are looked at: the run with its
stalls cut off, which tells small slowdowns, and as it was, which tells that it stalls more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rltrace.analysis.gate.resampling import Floats

_BEYOND = 4.0  # robust standard deviations
_LEAST = math.log(1.1)  # and a stalled step is at least a tenth longer than is usual
_MOST_ZEROS = 0.2  # a stage that is not in each step has no usual length


def without_stalls(seconds: Sequence[Floats], paired: bool) -> list[Floats]:
    """The columns of seconds of some runs with the stalls cut to the longest usual value. `paired`
    columns are of the same steps: usual is then relative to what the runs share."""
    if any(not len(one) or (~(one > 0)).mean() > _MOST_ZEROS for one in seconds):
        return list(seconds)
    logs = [np.log(np.maximum(np.nan_to_num(one), 1e-9)) for one in seconds]
    pattern = _shared(np.stack(logs)) if paired else None
    rests = [one if pattern is None else one - pattern for one in logs]
    levels = [float(np.median(one)) for one in rests]
    off = np.concatenate([one - level for one, level in zip(rests, levels, strict=True)])
    most = max(_BEYOND * 1.4826 * float(np.median(np.abs(off))), _LEAST)
    cut = []
    for values, rest, level in zip(seconds, rests, levels, strict=True):
        beyond = np.maximum(rest - level - most, 0.0)
        cut.append(values * np.exp(-beyond))
    return cut


def _shared(logs: Floats) -> Floats:
    """What each step is for all runs (the lower median of two, as the longer may have stalled)."""
    centred = logs - np.median(logs, axis=1, keepdims=True)
    place = (len(logs) - 1) // 2
    shared: Floats = np.sort(centred, axis=0)[place]
    return shared
