"""torchforge: the tracer that its applications time their two loops with.

The loops are closures of the application, where no function can be hooked, and what its actors do
is behind endpoints. Its tracer names what has been done since the last call, in both loops.
"""

from __future__ import annotations

from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.logged import record_figures
from rltrace.adapters.table.timers import laps
from rltrace.adapters.table.weights import version_is
from rltrace.hooks.hook import Call, Hook

_ROLLOUTS = "main_perf/continuous_rollouts"
_TRAINING = "main_perf/continuous_training"
_TRACER = "forge.observability.perf_tracker:Tracer"

LABELS = {
    _TRAINING: "step",
    f"{_ROLLOUTS}/data_loading": "data",
    f"{_ROLLOUTS}/policy_generation": "rollout",
    f"{_ROLLOUTS}/reward_evaluation": "reward",
    f"{_ROLLOUTS}/reference_model_calculate_logprobs": "reference",
    f"{_TRAINING}/waiting_for_buffer": "wait",
    f"{_TRAINING}/train_step": "train",
    f"{_TRAINING}/push_weights": "sync",
    f"{_TRAINING}/update_weights": "sync",
    f"{_TRAINING}/drop_weights": "sync",
}
"""Prefix and name of a lap -> stage; the metric is `<label>/duration_avg_s`."""


def metric_recorded(call: Call) -> None:
    record_figures(call, {call.argument("key"): call.argument("value")})


class Torchforge(TableAdapter):
    framework = "forge.observability"  # others are called forge too
    labels = LABELS
    calls = (
        # The buffer is told which version trains: it drops what is too old for it.
        Hook(
            "forge.actors.replay_buffer:ReplayBuffer._evict",
            before=version_is("curr_policy_version"),
        ),
        Hook(
            "forge.actors.trainer.titan:TitanTrainer.forward_backward",
            "train",
            alternates=("forge.actors.trainer:RLTrainer.forward_backward",),
        ),
    )
    timers = laps(
        f"{_TRACER}.start",
        f"{_TRACER}.step",
        f"{_TRACER}.stop",
        LABELS,
        prefix=lambda call: str(call.self.prefix),
        name=lambda call: str(call.argument("step_name")),
    )
    sinks = (Hook("forge.observability.metrics:record_metric", before=metric_recorded),)
