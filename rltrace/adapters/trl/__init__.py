"""TRL: GRPO, RLOO, online DPO, and the asynchronous trainers with their rollout process.

    hooks.py        which functions are watched, and in which versions they are
    loop.py         steps, micro-batches and what they train on, TRL's own figures
    objective.py    what the arguments say of the objective
    generation.py   samples that the trainer generates itself, whether their tokens are the sampled
    buffer.py       which of them a micro-batch has, however often they are reused
    verdicts.py     rewards, function by function
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
from rltrace.hooks.hook import Adapter


class TRL(Adapter):
    """The adapter for TRL."""

    framework = "trl"
    versions = ">=0.28,<1.17"
    hooks = HOOKS
