"""Which resource binds a workload in its placement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rltrace.analysis.binding import RESOURCE_OF
from rltrace.analysis.whatif.replay import Replay, replay
from rltrace.analysis.whatif.workload import OVERLAPPING, Sync, Workload
from rltrace.trace.vocabulary import Stage

BALANCED = 0.9  # what takes at least this part of the longest binds with it


def walls(workload: Workload, played: Replay) -> tuple[str, ...]:
    """The resources that bind, the first the most. Where stages take turns it is the largest of
    them. Where chains overlap it is the slower one (how fast the actors would be if the learner
    took no time, against the learner on its own), and both where they are nearly as slow."""
    stages = played.stages_s
    weights: dict[Stage, float]
    actors: dict[Stage, float]
    weights = {s: stages[s] for s in (Stage.SYNC, Stage.SWITCH) if s in stages}
    actors = {s: stages[s] for s in (Stage.ROLLOUT, Stage.REWARD) if s in stages}
    learner = {s: x for s, x in stages.items() if s not in {*actors, *weights}}
    if _tools_bind(workload):
        actors.pop(Stage.ROLLOUT, None)  # which runs here and there meanwhile
        actors[Stage.ENV] = played.learner_waits_s - actors.get(Stage.REWARD, 0.0)
    if workload.placement not in OVERLAPPING:
        return _near(_by_resource({**actors, **learner, **weights}))
    alone = replay(replace(workload, serial_s={}, rest_s=0.0, sync=Sync()))
    weights_s = sum(weights.values()) * (1 - workload.sync.overlap)
    chain_s = {
        _largest(actors): alone.step_s,
        _largest(learner): played.step_s - played.learner_waits_s - weights_s,
        RESOURCE_OF[Stage.SYNC]: weights_s,
    }
    return _near({name: seconds for name, seconds in chain_s.items() if name})


def _tools_bind(workload: Workload) -> bool:
    """Whether a sample waits for its tools longer than it decodes."""
    env_s = float(np.mean([batch.env_s.mean() for batch in workload.batches]))
    tokens = float(np.mean([batch.tokens.mean() for batch in workload.batches]))
    engine = workload.engine
    running = min(engine.slots, len(workload.batches[0].tokens) / engine.workers)
    return env_s > tokens * (engine.token_s + engine.shared_token_s * running)


def _by_resource(stages: dict[Stage, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for stage, seconds in stages.items():
        name = RESOURCE_OF.get(stage, "")
        if name:
            found[name] = found.get(name, 0.0) + seconds
    return found


def _largest(stages: dict[Stage, float]) -> str:
    found = _by_resource(stages)
    return max(found, key=found.__getitem__) if found else ""


def _near(found: dict[str, float]) -> tuple[str, ...]:
    """The names of the largest value and of those that are nearly as large."""
    most = max(found.values(), default=0.0)
    near = [name for name, seconds in found.items() if seconds and seconds >= BALANCED * most]
    return tuple(sorted(near, key=lambda name: -found[name]))
