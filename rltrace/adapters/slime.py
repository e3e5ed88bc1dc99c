"""slime: the rollout manager's samples and verdicts, the actors' timer, weights by bucket.

A step is what lies between two calls of the rollout manager's `generate`: all that its synchronous
loop does for one rollout id (in `train_async.py`, training on the id before). Versions count weight
updates, as slime's own do.
"""

from __future__ import annotations

from typing import Any

from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.logged import logged
from rltrace.adapters.table.steps import step_begins
from rltrace.adapters.table.timers import start_stop
from rltrace.adapters.table.weights import Sending
from rltrace.hooks.hook import Call, Hook
from rltrace.hooks.identity import identify
from rltrace.trace.vocabulary import Finish

LABELS = {
    "actor_train": "train",
    "critic_train": "train",
    "ref_log_probs": "reference",
    "teacher_log_probs": "reference",
    "log_probs": "logprob",
    "values": "value",
    "train_wait": "wait",
    "data_preprocess": "data",
    "sleep": "switch",
    "wake_up": "switch",
    "save_model": "checkpoint",
    "ref_model_update": "other",
    "train": "",  # all of the above in one
    "update_weights": "",  # by call
}
"""slime's timer -> stage; the metric is `perf/<label>_time`."""

_MANAGER = "slime.ray.rollout:RolloutManager"
_SAMPLES = "slime.rollout.sglang_rollout"
_ACTOR = "slime.backends.megatron_utils.actor:MegatronTrainRayActor"
_WEIGHTS = "slime.backends.megatron_utils.update_weight"
_ROLES = {
    "slime.ray.rollout:RolloutManager": "rollouter",
    _ACTOR: "learner",
    "slime.backends.sglang_utils.sglang_engine:SGLangEngine": "rollout",
}
_FINISHES = {
    "completed": Finish.STOP,
    "truncated": Finish.LENGTH,
    "aborted": Finish.ABORT,
    "failed": Finish.ERROR,
}


class _Evaluation:
    """Whether the manager evaluates: it does so while it generates nothing else."""

    on = False


def rollout_begins(call: Call) -> None:
    """The driver asks for the samples of a rollout id: the step begins."""
    step_begins(int(call.argument("rollout_id")))


def evaluation_begins(call: Call) -> None:
    _Evaluation.on = True


def evaluation_ends(call: Call) -> None:
    _Evaluation.on = False


def generation_stage(call: Call) -> str:
    """Evaluation uses the same function."""
    return "eval" if _Evaluation.on else "rollout"


def sample_begins(call: Call) -> None:
    sample = call.argument("sample")
    if not call.argument("evaluation") and not isinstance(sample, list):
        call.state = call.row("trajectories", **_identity(sample))


def sample_ends(call: Call) -> None:
    """A sample comes back: with how it ended, its length and the versions that generated it."""
    sample = call.result
    if call.state is None or sample is None or isinstance(sample, list):
        return
    versions = [int(v) for v in sample.weight_versions if str(v).isdigit()]
    known = {"first_version": versions[0], "last_version": versions[-1]} if versions else {}
    finish = _FINISHES.get(str(getattr(sample.status, "value", sample.status)))
    if finish is not None:
        known["finish"] = finish
    mask = getattr(sample, "loss_mask", None)  # without what tools answered
    tokens = sample.response_length if mask is None else sum(mask)
    call.state.set(end_ns=call.end_ns, response_tokens=tokens, **known)


def _identity(sample: Any) -> dict[str, int]:
    """slime counts its samples over the whole run."""
    known = {}
    if sample.index is not None:
        known["trajectory"] = identify(f"slime sample {sample.index}")
    if sample.group_index is not None:
        known["group"] = identify(f"slime group {sample.group_index}")
    return known


def actor_placed(call: Call) -> None:
    call.recorder.describe(rank=call.argument("rank"))


def training_begins(call: Call) -> None:
    """What this actor does from here on belongs to the rollout id that it trains on."""
    call.recorder.step = int(call.argument("rollout_id"))


def sent_version(call: Call) -> int | None:
    """The number of the update that has just gone out."""
    updater = getattr(call.self, "weight_updater", None)
    return getattr(updater, "weight_version", None)


def family(**places: str) -> tuple[Hook, ...]:
    """The rows that slime shares with what descends from it, each at its place: `generate`,
    `generate_and_rm`, `async_rm`, `batched_async_rm`, `update`, `distributed` and `tensor`."""
    sending = Sending(sent_version)
    return (
        Hook(places["generate"], generation_stage, stages=("rollout", "eval")),
        Hook(places["generate_and_rm"], before=sample_begins, after=sample_ends),
        Hook(places["async_rm"], "reward"),
        Hook(places["batched_async_rm"], "reward"),
        Hook(places["update"], "sync", before=sending.begins, after=sending.ends),
        Hook(
            places["distributed"],
            "sync",
            phase="transfer",
            before=sending.bucket("converted_named_tensors"),
        ),
        Hook(places["tensor"], "sync", phase="transfer", before=sending.bucket("hf_named_tensors")),
    )


class Slime(TableAdapter):
    """The adapter for slime."""

    framework = "slime"
    versions = ">=0.2,<0.4"
    labels = LABELS
    calls = (
        Hook(f"{_MANAGER}.generate", before=rollout_begins),
        Hook(f"{_MANAGER}.eval", "eval", before=evaluation_begins, after=evaluation_ends),
        *family(
            generate=f"{_SAMPLES}:generate",
            generate_and_rm=f"{_SAMPLES}:generate_and_rm",
            async_rm="slime.rollout.rm_hub:async_rm",
            batched_async_rm="slime.rollout.rm_hub:batched_async_rm",
            update=f"{_ACTOR}.update_weights",
            distributed=(
                f"{_WEIGHTS}.update_weight_from_distributed:"
                "UpdateWeightFromDistributed._update_bucket_weights_from_distributed"
            ),
            tensor=f"{_WEIGHTS}.update_weight_from_tensor:UpdateWeightFromTensor._send_hf_params",
        ),
        Hook("slime.ray.train_actor:TrainRayActor.__init__", before=actor_placed),
        Hook(f"{_ACTOR}.train", before=training_begins),
    )
    timers = start_stop(
        "slime.observability.timer:Timer.start",
        "slime.observability.timer:Timer.end",
        LABELS,
        lambda call: str(call.argument("name")),
        alternates={
            "slime.observability.timer:Timer.start": ("slime.utils.timer:Timer.start",),
            "slime.observability.timer:Timer.end": ("slime.utils.timer:Timer.end",),
        },
    )
    sinks = (
        Hook(
            "slime.observability.logging_utils:log",
            before=logged("metrics"),
            alternates=("slime.utils.logging_utils:log", "slime.utils.tracking_utils:log"),
        ),
    )
    roles = _ROLES
