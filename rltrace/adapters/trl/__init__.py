"""TRL: GRPO, RLOO, online DPO, and the asynchronous trainers with their rollout process.

    tables.py       TRL's words: what it logs
    hooks.py        which functions are watched, and in which versions they are
    loop.py         steps, micro-batches and what they train on, TRL's own figures
    objective.py    what the arguments say of the objective
    generation.py   samples that the trainer generates itself
    kept.py         whether their tokens are those that were sampled
    buffer.py       which of them a micro-batch has, however often they are reused
    verdicts.py     rewards, function by function
    passes.py       forward passes: reference and old log-probs
    pairs.py        online DPO, which does all of that in its training step
    weights.py      weights on their way to vLLM
    rollouts.py     samples in the rollout process of an asynchronous trainer
    queued.py       ... and as they come out of its queue

Versions are optimizer updates where the trainer asks for its samples itself (TRL's own
`_last_loaded_step` counts likewise), and TRL's `model_version`, which counts weight updates, in the
asynchronous trainers.
"""

from __future__ import annotations

from rltrace.adapters.trl.hooks import HOOKS
from rltrace.adapters.trl.tables import LABELS
from rltrace.hooks.hook import Adapter, OwnFigure

_ASYNC = ("async",)
_SYNC = ("colocated", "disaggregated")

FIGURES = (
    OwnFigure(
        ("step_time",),
        ("step",),
        "generation and rewards are in it; the optimizer's step, logging and checkpoints are not",
        placements=_SYNC,
        since_last=True,
    ),
    OwnFigure(
        ("perf/step_s",),
        ("step",),
        "from the end of one update to that of the next, the wait for samples included",
        placements=_ASYNC,
    ),
    OwnFigure(
        ("perf/fwd_bwd_s", "perf/optimizer_s"),
        ("train",),
        "clipping of gradients is in neither",
        placements=_ASYNC,
    ),
    OwnFigure(
        ("perf/weight_sync_s",),
        ("sync",),
        "the pause of the server and the wait for all ranks are in it",
        placements=_ASYNC,
    ),
    OwnFigure(
        ("weight_sync_time_s",),
        ("sync",),
        "the pause of the server and the wait for all ranks are in it",
        placements=_ASYNC,
    ),
    OwnFigure(
        ("rollout/duration_s",),
        ("rollout",),
        "one conversation in the mean, its tools included: many run at once",
        placements=_ASYNC,
    ),
    OwnFigure(
        ("perf/rollout_wait_s",),
        ("wait",),
        "the first rank's wait for the queue only",
        placements=_ASYNC,
    ),
    OwnFigure((), ("sync",), "no size is logged", name="bytes of a weight update", unit="B"),
)
"""Where a figure that TRL logs is not what its name says, and why (docs/trl.md)."""


class TRL(Adapter):
    """The adapter for TRL."""

    framework = "trl"
    versions = ">=0.28,<1.17"
    hooks = HOOKS
    labels = LABELS
    figures = FIGURES
