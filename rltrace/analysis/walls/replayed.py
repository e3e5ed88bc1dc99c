"""What steps would lose without tools and verdicts, where these run beside generation.

The exposed rule gives the time in which two stages of a chain ran at once to one of them, the
critical path follows one sample of many. A replay of the run (`rltrace.analysis.whatif.replay`) in
which the samples do not wait for them, and all else is as it was, has to choose neither.
"""

from __future__ import annotations

from dataclasses import replace

from rltrace.analysis.chains import Seconds
from rltrace.analysis.walls.wall import Seen
from rltrace.analysis.whatif.replay import replay
from rltrace.analysis.whatif.trust import is_off
from rltrace.analysis.whatif.workload import Workload

_BESIDE = 0.1  # of the steps; of less, exposed time is near enough


def without_latency_s(seen: Seen) -> Seconds | None:
    """Seconds by steady step that would fall away if tools and verdicts took no time: the same part
    of each. None where they hardly ran beside generation, or the run cannot be replayed."""
    load, steps_s = seen.workload, seen.steps_s
    if load is None or not load.steps or is_off(load) or not steps_s.sum() > 0:
        return None
    if seen.breakdown.beside_s[seen.steady].sum() <= _BESIDE * steps_s.sum():
        return None
    seconds: Seconds = steps_s * _share(load)
    return seconds


def _share(load: Workload) -> float:
    batches = tuple(replace(b, env_s=0 * b.env_s, verdict_s=0 * b.verdict_s) for b in load.batches)
    quick = replay(replace(load, batches=batches))
    return max(0.0, 1 - quick.step_s / replay(load).step_s)
