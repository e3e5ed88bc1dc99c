"""A minimal GRPO trainer on Ray, small enough to read in one sitting.

Read in this order: `task` (what is learned), `model` (the policy), `engine` (generation), `rollout`
and `reward` (the actors' side), `grpo` and `learner` (the learner's), `chains` (their
stages), `queue` and `placement` (who runs when), `actor_pools` (the dead replaced), `run` (a job).
It holds no tracing call: rltrace attaches to it from outside.
"""

from __future__ import annotations

from collections.abc import Callable

from rltrace.trainer.config import TrainerConfig, TrainerError, load_job
from rltrace.trainer.ledger import Ledger, StepRecord

__all__ = ["Ledger", "StepRecord", "TrainerConfig", "TrainerError", "load_job", "train"]


def train(
    config: TrainerConfig,
    on_step: Callable[[StepRecord], None] | None = None,
    ledger: Ledger | None = None,
) -> Ledger:
    """Trains a policy from scratch, calls `on_step` after every step, and returns the ledger: one
    that is given is filled as the run goes, however it ends. Errors: `TrainerError` where torch or
    Ray is missing, the Ray cluster is too small, or the run lost what it cannot do without."""
    try:
        from rltrace.trainer.run import run
    except ModuleNotFoundError as missing:
        if missing.name not in ("torch", "ray", "xxhash"):
            raise
        how = "pip install 'rltrace-toolkit[trainer]'"
        raise TrainerError(f"the trainer needs {missing.name}: {how}") from None
    ledger = ledger or Ledger(config)
    run(config, on_step or (lambda record: None), ledger)
    return ledger
