"""verl: trainers, agent loops, reward loops, engines and rollout servers.

Versions count weight updates, as verl's own do.
"""

from __future__ import annotations

from rltrace.adapters.verl.hooks import HOOKS
from rltrace.adapters.verl.tables import LABELS, ROLES
from rltrace.hooks.hook import Adapter


class Verl(Adapter):
    framework = "verl"
    versions = ">=0.6.1,<0.10"
    hooks = HOOKS
    labels = LABELS
    roles = ROLES
