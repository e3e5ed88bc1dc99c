"""Where a figure that OpenRLHF logs is not what its name says, and why (docs/openrlhf.md)."""

from __future__ import annotations

from rltrace.hooks.figures import OwnFigure

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
