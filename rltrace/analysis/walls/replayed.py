"""What steps would lose without generation, or without tools and verdicts, by a replay of the run.

In the replay (`rltrace.analysis.whatif.replay`) these take no time, and all else is as it was.
"""

from __future__ import annotations

from dataclasses import replace

from rltrace.analysis.walls.wall import Seen
from rltrace.analysis.whatif.replay import replay
from rltrace.analysis.whatif.trust import is_off
from rltrace.analysis.whatif.workload import Workload
from rltrace.trace.vocabulary import Stage

_BESIDE = 0.1  # of the steps; of less, exposed time is near enough


def ran_beside(seen: Seen) -> bool:
    """Whether stages of one chain ran beside each other for so long that the exposed rule, which
    gives such time to one of them, cannot tell what each costs."""
    beside_s = float(seen.breakdown.beside_s[seen.steady].sum())
    return beside_s > _BESIDE * float(seen.steps_s.sum())


def replayed_share(seen: Seen, stages: tuple[Stage, ...]) -> float | None:
    """The part of the steps that would fall away if these stages, generation or tools and verdicts,
    took no time. None where the run cannot be replayed."""
    load = seen.workload
    if load is None or not load.steps or is_off(load):
        return None
    return _share(load, Stage.ROLLOUT in stages)


def _share(load: Workload, generation: bool) -> float:
    if generation:
        engine = replace(load.engine, token_s=0.0, shared_token_s=0.0)
        quick = replace(load, engine=engine)
    else:
        batches = (replace(b, env_s=0 * b.env_s, verdict_s=0 * b.verdict_s) for b in load.batches)
        quick = replace(load, batches=tuple(batches))
    return max(0.0, 1 - replay(quick).step_s / replay(load).step_s)
