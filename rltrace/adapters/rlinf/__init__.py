"""RLinf: the runner's timer, what its workers compute, weights in buckets.

The workers' own timer finds its label on the call stack, where nothing may come between, so the
functions that do the work are hooked instead, and the channels through which workers give samples
on. Inference may be one pass for behaviour and reference log-probs; it is recorded as the former.
"""

from __future__ import annotations

from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.logged import logged
from rltrace.adapters.table.rows import either, formerly, methods
from rltrace.adapters.table.stated import not_none, options
from rltrace.adapters.table.steps import step_is
from rltrace.adapters.table.timers import labelled, timed_block
from rltrace.adapters.table.weights import Sending, phase_row, tensor_bytes
from rltrace.hooks.hook import Call, Hook

LABELS = labelled(
    step="step",
    data="prepare_data",
    sync="sync_weights update_rollout_weights",
    wait="generate_rollouts construct_rollout_batch actor_training",
    other="cal_adv_and_returns",
    eval="eval evaluate",
)
"""The runner's timers; the metric is `time/<label>`. It waits for what is seen in the workers."""

_CHANNEL = "rlinf.scheduler.channel.channel:Channel"
_WORKERS = "rlinf.workers"
_ROLLOUT = f"{_WORKERS}.rollout"
_FSDP = f"{_WORKERS}.actor.fsdp_actor_worker:FSDPActor"
_MEGATRON = f"{_WORKERS}.actor.megatron_actor_worker:MegatronActor"
_EMBODIED = f"{_WORKERS}.actor.embodied_fsdp_actor_worker:EmbodiedFSDPActor"
_SGLANG = f"{_ROLLOUT}.sglang.sglang_worker:SGLangWorker"
_VLLM = f"{_ROLLOUT}.vllm.vllm_worker:VLLMWorker"
_HF = f"{_ROLLOUT}.hf.huggingface_worker:MultiStepRolloutWorker"
_ROLES = {"actor": "learner", "inference": "reference"}
_ROLES |= {word: word for word in ("rollout", "reward", "env")}
"""How the name of a group of workers begins (`ActorGroup` and so on) -> role."""


def configured(call: Call) -> None:
    call.recorder.describe(settings=options(call.argument("cfg")))


def worker_made(call: Call) -> None:
    if call.exception is None:
        name = str(call.self._group_name).lower()
        role = next((role for word, role in _ROLES.items() if name.startswith(word)), None)
        call.recorder.describe(rank=int(call.self._rank), **not_none(role=role))


def waits(call: Call) -> bool:
    """Else it comes back at once, with something to wait for."""
    return not call.argument("async_op")


def one_passed(call: Call) -> None:
    if call.span is not None and call.exception is None:
        call.span.set(items=1)


def weights_begin(call: Call) -> None:
    step = getattr(call.self, "global_steps", None)
    if step is not None:
        step_is(call.recorder, int(step))


def weights_divided(call: Call) -> None:
    weights = call.argument("state_dict").values()
    _sending.add(tensor_bytes(tensor for tensor in weights if hasattr(tensor, "element_size")))


_sending = Sending(lambda call: None)  # the reasoning runner counts no versions


class RLinf(TableAdapter):
    framework = "rlinf"
    versions = ">=0.2,<0.5"
    labels = LABELS
    calls = (
        Hook("rlinf.scheduler.worker.worker:Worker.__init__", after=worker_made),
        Hook("rlinf.utils.metric_logger:MetricLogger.__init__", before=configured),
        *methods(_CHANNEL, "put get", after=one_passed, **either(waits, "wait")),
        Hook("rlinf.runners.reasoning_runner:ReasoningRunner._sync_weights", before=weights_begin),
        Hook(f"{_SGLANG}._async_generate_group", "rollout"),
        Hook(f"{_VLLM}._async_generate_group", "rollout"),
        Hook(f"{_HF}.generate", "rollout"),
        Hook(f"{_WORKERS}.env.env_worker:EnvWorker.interact", "env"),
        Hook(f"{_WORKERS}.reward.reward_worker:RewardWorker._compute_rule_based_rewards", "reward"),
        Hook(f"{_FSDP}.inference_step", "logprob"),
        Hook(f"{_FSDP}.training_step", "train"),
        *formerly(
            {_EMBODIED: f"{_WORKERS}.actor.fsdp_actor_worker:EmbodiedFSDPActor"},  # until 0.3
            Hook(f"{_EMBODIED}.run_training", "train"),
            phase_row("transfer", f"{_EMBODIED}.sync_model_to_rollout"),
        ),
        Hook(f"{_WORKERS}.megatron_worker:MegatronWorker.inference_step", "logprob"),
        Hook(f"{_WORKERS}.megatron_worker:MegatronWorker.training_step", "train"),
        _sending.update_row(f"{_FSDP}.sync_model_to_rollout", phase="transfer"),
        phase_row("transfer", f"{_MEGATRON}.sync_model_to_rollout"),
        *(phase_row("load", f"{w}.sync_model_from_actor") for w in (_SGLANG, _VLLM, _HF)),
        Hook(f"{_FSDP}.divide_model_to_bucket", before=weights_divided),
    )
    timers = (timed_block("rlinf.utils.distributed:ScopedTimer.__call__", LABELS, "name"),)
    sinks = (Hook("rlinf.utils.metric_logger:MetricLogger.log", before=logged("data")),)
