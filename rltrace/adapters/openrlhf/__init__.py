"""OpenRLHF: the synchronous and the asynchronous trainer, on Ray, DeepSpeed and vLLM.

    tables.py       OpenRLHF's words: its timings, its actors
    hooks.py        which functions are watched, and in which versions they are
    controller.py   steps, what they train on, and OpenRLHF's own figures
    objective.py    what the flags say of the objective
    fates.py        how samples carry their ids, and which are filtered out
    rollout.py      trajectories and requests in rollout actors
    verdicts.py     rewards, whoever gives them
    agents.py       executors and environments of the user's
    engine.py       weights as they arrive
    training.py     the processes of the models, weights as they are sent

Versions count the weight updates that have been completed; an engine starts with version 0.
"""

from __future__ import annotations

from rltrace.adapters.openrlhf.hooks import HOOKS
from rltrace.adapters.openrlhf.tables import LABELS, ROLES
from rltrace.hooks.hook import Adapter, OwnFigure

_ASYNC = ("one-step-off", "async")
_CALL = "the controller's call: dispatch is in it, the work is the learners'"

FIGURES = (
    OwnFigure(
        ("timing/broadcast",),
        ("sync",),
        "the wait for the running generation, or for engines to pause, is in it",
        placements=_ASYNC,
    ),
    OwnFigure(("timing/broadcast",), ("sync",), "the controller's call: a call for each parameter"),
    OwnFigure(
        ("timing/generation",),
        ("rollout",),
        "of the batch that the step trains on, so of an earlier time; scores are in it",
        placements=_ASYNC,
    ),
    OwnFigure(
        ("timing/generation",),
        ("rollout",),
        "scores by functions, servers and agents are in it, which come meanwhile",
    ),
    OwnFigure(
        ("timing/make_experience",),
        ("reference", "logprob", "value"),
        "the forward passes of up to four models and their dispatch, in one number",
    ),
    OwnFigure(("timing/ppo_train",), ("train",), _CALL),
    OwnFigure(
        ("timing/step_total",),
        ("step",),
        "wall-clock, the wait for the batch included",
        placements=_ASYNC,
    ),
    OwnFigure(
        ("timing/step_total",),
        ("step",),
        "the sum of the other four: what passes between them, checkpoints and evaluation are not "
        "in it",
    ),
    OwnFigure((), ("sync",), "no size is logged", name="bytes of a weight update", unit="B"),
)
"""Where a figure that OpenRLHF logs is not what its name says, and why (docs/openrlhf.md)."""


class OpenRLHF(Adapter):
    """The adapter for OpenRLHF."""

    framework = "openrlhf"
    versions = ">=0.9.1,<0.12"
    hooks = HOOKS
    labels = LABELS
    roles = ROLES
    figures = FIGURES
