"""OpenRLHF: the synchronous and the asynchronous trainer, on Ray, DeepSpeed and vLLM.

    hooks.py        which functions are watched, in which versions they are, who its actors are
    controller.py   steps, what they train on, what the flags say of the objective
    fates.py        how samples carry their ids, and which are filtered out
    rollout.py      trajectories and requests in rollout actors
    verdicts.py     rewards, whoever gives them
    agents.py       executors and environments of the user's
    engine.py       weights as they arrive
    training.py     the processes of the models, weights as they are sent

Versions count the weight updates that have been completed; an engine starts with version 0.
"""

from __future__ import annotations

from rltrace.adapters.openrlhf.hooks import HOOKS, ROLES
from rltrace.hooks.hook import Adapter


class OpenRLHF(Adapter):
    """The adapter for OpenRLHF."""

    framework = "openrlhf"
    versions = ">=0.9.1,<0.12"
    hooks = HOOKS
    roles = ROLES
