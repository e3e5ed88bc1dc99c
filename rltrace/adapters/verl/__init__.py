"""verl: V1 and legacy trainers, agent loops, reward loops, engines and rollout servers.

    tables.py       verl's words: timers, roles, transports
    hooks.py        which functions are watched, and in which versions they are
    controller.py   readers in the driver: timers, steps
    objective.py    what the configuration says of the objective
    fates.py        ... of what a step trains on and drops
    learner.py      readers in the training workers
    weights.py      ... of what they send and rollout workers take
    rollout.py      readers in agent loops

Versions count weight updates, as verl's own do.
"""

from __future__ import annotations

from rltrace.adapters.verl.hooks import HOOKS
from rltrace.adapters.verl.tables import LABELS, ROLES
from rltrace.hooks.hook import Adapter


class Verl(Adapter):
    """The adapter for verl."""

    framework = "verl"
    versions = ">=0.6.1,<0.10"
    hooks = HOOKS
    labels = LABELS
    roles = ROLES
