"""RLYX: the four functions of its trainer, `rlyx.trainers.train_gsm8k`.

The reference pass is inside the loss, so it cannot be told from training. Each step uses what the
step itself generated: there is no lag.
"""

from __future__ import annotations

from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.steps import step_begins
from rltrace.adapters.table.weights import tensor_bytes, weights_moved
from rltrace.hooks.hook import Call, Hook
from rltrace.trace.vocabulary import SyncRole

_TRAINER = "rlyx.trainers.train_gsm8k"


def rollout_stage(call: Call) -> str:
    """Generation is the first thing that a step does."""
    step_begins(call.recorder.step + 1)
    return "rollout"


def weights_sent(call: Call) -> None:
    """The engines have the model's parameters: one version more. The first rank sends them."""
    if call.exception is not None or not call.argument("accelerator").is_main_process:
        return
    size = tensor_bytes(call.argument("model").parameters())
    weights_moved(call, SyncRole.SOURCE, max(call.recorder.version, 0) + 1, size)


class RLYX(TableAdapter):
    framework = "rlyx"
    calls = (
        Hook(f"{_TRAINER}:perform_rollout", rollout_stage, stages=("rollout",)),
        Hook(f"{_TRAINER}:calculate_rewards", "reward"),
        Hook(f"{_TRAINER}:calculate_policy_loss", "train"),
        Hook(f"{_TRAINER}:update_model_weights", "sync", after=weights_sent),
    )
