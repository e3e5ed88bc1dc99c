"""slime: samples and verdicts, the actors' timer, weights by bucket.

A step lies between two calls of the rollout manager's `generate`: in the synchronous loop, all for
one rollout id (in `train_async.py`, training on the one before). Versions count weight updates.
"""

from __future__ import annotations

from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.logged import logged
from rltrace.adapters.table.rows import formerly, methods
from rltrace.adapters.table.samples import finish, versions_of
from rltrace.adapters.table.stated import at
from rltrace.adapters.table.steps import step_begins
from rltrace.adapters.table.timers import labelled, start_stop
from rltrace.adapters.table.weights import Sending
from rltrace.hooks.hook import Call, Hook
from rltrace.hooks.sample_api import identify

LABELS = labelled(
    train="actor_train critic_train",
    reference="ref_log_probs teacher_log_probs",
    logprob="log_probs",
    value="values",
    wait="train_wait",
    data="data_preprocess",
    switch="sleep wake_up",
    checkpoint="save_model",
    other="ref_model_update",
    no_span="train update_weights",  # all of the above in one; by call
)
"""slime's timers; the metric is `perf/<label>_time`."""

_MANAGER = "slime.ray.rollout:RolloutManager"
_SAMPLES = "slime.rollout.sglang_rollout"
_ACTOR = "slime.backends.megatron_utils.actor:MegatronTrainRayActor"
_WEIGHTS = "slime.backends.megatron_utils.update_weight"
_ROLES = {
    _MANAGER: "rollouter",
    _ACTOR: "learner",
    "slime.backends.sglang_utils.sglang_engine:SGLangEngine": "rollout",
}
_BEFORE = {"slime.observability": "slime.utils"}


def rollout_begins(call: Call) -> None:
    step_begins(int(call.argument("rollout_id")))


def sample_begins(call: Call) -> None:
    """slime counts its samples over the whole run."""
    sample = call.argument("sample")
    if not call.argument("evaluation") and not isinstance(sample, list):
        numbers = {"trajectory": ("sample", sample.index), "group": ("group", sample.group_index)}
        known = {
            column: identify(f"slime {what} {number}")
            for column, (what, number) in numbers.items()
            if number is not None
        }
        call.state = call.row("trajectories", **known)


def sample_ends(call: Call) -> None:
    sample = call.result
    if call.state is None or sample is None or isinstance(sample, list):
        return
    known = versions_of([int(v) for v in sample.weight_versions if str(v).isdigit()])
    known |= finish(getattr(sample.status, "value", sample.status))
    mask = getattr(sample, "loss_mask", None)  # without what tools answered
    tokens = sample.response_length if mask is None else sum(mask)
    call.state.set(end_ns=call.end_ns, response_tokens=tokens, **known)


def actor_placed(call: Call) -> None:
    call.recorder.describe(rank=call.argument("rank"))


def training_begins(call: Call) -> None:
    """What this actor does from here on belongs to the rollout id that it trains on."""
    call.recorder.step = int(call.argument("rollout_id"))


_sending = Sending(lambda call: at(call.self, "weight_updater.weight_version"))


class Slime(TableAdapter):
    framework = "slime"
    versions = ">=0.2,<0.4"
    labels = LABELS
    calls = (
        Hook(f"{_MANAGER}.generate", before=rollout_begins),
        Hook(f"{_MANAGER}.eval", "eval"),
        Hook(f"{_SAMPLES}:generate", "rollout"),
        Hook(f"{_SAMPLES}:generate_and_rm", before=sample_begins, after=sample_ends),
        *methods("slime.rollout.rm_hub", "async_rm batched_async_rm", "reward"),
        _sending.update_row(f"{_ACTOR}.update_weights"),
        _sending.bucket_row(
            f"{_WEIGHTS}.update_weight_from_distributed:"
            "UpdateWeightFromDistributed._update_bucket_weights_from_distributed",
            "converted_named_tensors",
        ),
        _sending.bucket_row(
            f"{_WEIGHTS}.update_weight_from_tensor:UpdateWeightFromTensor._send_hf_params",
            "hf_named_tensors",
        ),
        Hook("slime.ray.train_actor:TrainRayActor.__init__", before=actor_placed),
        Hook(f"{_ACTOR}.train", before=training_begins),
    )
    timers = formerly(
        _BEFORE,
        *start_stop(
            "slime.observability.timer:Timer.start",
            "slime.observability.timer:Timer.end",
            LABELS,
            lambda call: str(call.argument("name")),
        ),
    )
    sinks = formerly(
        _BEFORE,
        Hook(
            "slime.observability.logging_utils:log",
            before=logged("metrics"),
            alternates=("slime.utils.tracking_utils:log",),
        ),
    )
    roles = _ROLES
