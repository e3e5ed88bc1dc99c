"""verl: V1 and legacy trainers, agent loops, reward loops, engines and rollout servers.

    tables.py       verl's words: timers, roles, transports
    hooks.py        which functions are watched, and in which versions they are
    controller.py   readers in the driver: timers, metrics
    objective.py    what the configuration says of the objective
    fates.py        ... of what a step trains on and drops
    learner.py      readers in the training workers
    weights.py      ... of what they send and rollout workers take
    forerunner.py   the same for verl 0.8's main_ppo_sync
    rollout.py      readers in agent loops

Versions count weight updates, as verl's own do.
"""

from __future__ import annotations

from rltrace.adapters.verl.hooks import HOOKS
from rltrace.adapters.verl.tables import LABELS, ROLES
from rltrace.hooks.hook import Adapter, OwnFigure

_OF_V1 = "training/off_policy/trajectory_staleness/mean"  # only its trainers log it
_CALL = "the driver's call: dispatch and the data store are in it, the work is the workers'"
_GENERATES = "the driver's call: dispatch is in it, and tools and scores where they are part of it"

FIGURES = (
    OwnFigure(
        ("timing_s/gen",),
        ("rollout",),
        "the trainer's wait for samples, short while the servers are busy throughout",
        placements=("one-step-off", "async"),
    ),
    OwnFigure(
        ("timing_s/gen",),
        ("rollout",),
        "a wait that asks every 2 s whether the batch is complete, scores included",
        beside=_OF_V1,
    ),
    OwnFigure(
        ("timing_s/gen",),
        ("rollout",),
        _GENERATES,
        beside="timing_s/agent_loop/generate_sequences/mean",
    ),
    OwnFigure(
        ("timing_s/gen",),
        ("rollout",),
        "a wait that asks every second whether the batch is complete, scores included",
        versions=">=0.8,<0.9",  # main_ppo_sync: its legacy trainer logs the one above
    ),
    OwnFigure(("timing_s/gen",), ("rollout",), _GENERATES),
    OwnFigure(
        ("timing_s/reward",),
        ("reward",),
        "scores are only collected there, if at all; the scoring ran inside gen",
        name="timing_s/reward",
        at_most=1e-3,
    ),
    OwnFigure(("timing_s/reward",), ("reward",), _CALL),
    OwnFigure(("timing_s/old_log_prob",), ("logprob",), _CALL),
    OwnFigure(("timing_s/ref",), ("reference",), _CALL),
    OwnFigure(("timing_s/values",), ("value",), _CALL),
    OwnFigure(("timing_s/update_actor", "timing_s/update_critic"), ("train",), _CALL),
    OwnFigure(
        ("checkpoint_engine/payload_mbytes",),
        ("sync",),
        "of the checkpoint engines `delta_sharded` alone logs a size",
        name="bytes of a weight update",
        unit="B",
        scale=1 << 20,
    ),
)
"""Where a figure that verl logs is not what its name says, and why (docs/verl.md)."""


class Verl(Adapter):
    """The adapter for verl."""

    framework = "verl"
    versions = ">=0.6.1,<0.10"
    hooks = HOOKS
    labels = LABELS
    roles = ROLES
    figures = FIGURES
