"""Which functions of TRL are watched, and in which versions they are.

What it inherits from transformers and accelerate is hooked there, once for all of its trainers.
"""

from __future__ import annotations

from rltrace.adapters.table.rows import either, formerly, in_versions, methods
from rltrace.adapters.table.weights import phase_row
from rltrace.adapters.trl import buffer, generation, loop, pairs, rollouts, verdicts, weights
from rltrace.hooks.hook import Hook

_BASE = "transformers.trainer:Trainer"
_ACCELERATOR = "accelerate.accelerator:Accelerator"
_VLLM = "trl.generation.vllm_generation:VLLMGeneration"
_CLIENT = "trl.generation.vllm_client:VLLMClient"
_LLM = "vllm.entrypoints.llm:LLM"
_PROFILED = "trl.extras.profiling:ProfilingContext"
_PAIRS = "trl.experimental.online_dpo.online_dpo_trainer:OnlineDPOTrainer"
_GRPO = "trl.trainer.grpo_trainer"
_RLOO = "trl.trainer.rloo_trainer"

_LOOP = (
    Hook(f"{_BASE}._inner_training_loop", before=loop.fit_begins, after=loop.loop.ends),
    Hook(f"{_BASE}.get_batch_samples", loop.batch_wanted, stages=("step", "wait", "data")),
    Hook(f"{_BASE}.training_step", "train", before=rollouts.micro_begins, after=loop.micro_ends),
    Hook(f"{_ACCELERATOR}.backward", "train"),
    Hook(f"{_ACCELERATOR}.clip_grad_norm_", "train"),
    Hook("accelerate.optimizer:AcceleratedOptimizer.step", "train", after=loop.loop.step_did_more),
    Hook(f"{_ACCELERATOR}.wait_for_everyone", "wait"),
    Hook("accelerate.utils:gather", "wait"),  # a rank's verdicts wait for those of all others
    Hook(f"{_BASE}._maybe_log_save_evaluate", "other", after=loop.loop.step_did_more),
    Hook(f"{_BASE}._save_checkpoint", "checkpoint"),
    Hook(f"{_BASE}.evaluate", "eval"),
    Hook(f"{_BASE}.log", before=loop.logged),
)

_TRAINERS = tuple(
    hook
    for module, trainer in ((_GRPO, f"{_GRPO}:GRPOTrainer"), (_RLOO, f"{_RLOO}:RLOOTrainer"))
    for hook in (
        Hook(f"{trainer}._prepare_inputs", "other", after=buffer.micro_given),
        Hook(f"{module}:shuffle_sequence_dict", before=buffer.shuffling, after=buffer.shuffled),
        Hook(
            f"{trainer}._generate",
            generation.own_rollout,
            stages=("rollout", "eval"),
            before=generation.begins,
            after=generation.ends,
        ),
        Hook(
            f"{trainer}._generate_single_turn",
            generation.turn_stage,
            stages=("rollout", "wait", "eval"),
            after=generation.turn_ends,
        ),
        Hook(
            f"{trainer}._calculate_rewards",
            before=verdicts.judging,
            after=verdicts.all_asked,
            **either(loop.trains, "reward", "eval"),
        ),
        Hook(f"{trainer}._generate_and_score_completions", after=verdicts.judged),
        Hook(
            f"{trainer}._get_per_token_logps_and_entropies",
            buffer.log_probs,
            stages=("reference", "logprob", "eval"),
            before=buffer.batch_seen,
        ),
        Hook(f"{module}:use_adapter", before=buffer.adapter_changed, after=buffer.adapter_back),
        Hook(f"{trainer}.compute_loss", **either(loop.trains, "train", "eval")),
    )
)

_FUNCTIONS = (
    Hook(f"{_GRPO}:GRPOTrainer._tool_call_loop", **either(loop.trains, "env", "eval")),
    Hook(f"{_PROFILED}.__enter__", before=verdicts.function_begins, stages=("reward",)),
    Hook(f"{_PROFILED}.__exit__", before=verdicts.function_ends),
)

_ENGINE = (
    Hook(f"{_VLLM}.generate", generation.engine_stage, stages=("rollout", "wait")),
    Hook(f"{_VLLM}.sync_weights", "sync", before=weights.begins, after=weights.ends),
    Hook(f"{_CLIENT}.update_named_param", before=weights.tensor_sent),
    *methods(_CLIENT, "generate chat", after=generation.answered),
    *methods(_LLM, "generate chat", after=generation.answered, optional=True),
    *methods(_LLM, "sleep wake_up", "switch", optional=True),
)

_ONLINE_DPO = (
    *methods(
        _PAIRS,
        "_generate _generate_vllm",
        generation.engine_stage,
        stages=("rollout", "wait"),
        before=pairs.begins,
        after=pairs.ends,
    ),
    Hook(f"{_PAIRS}._calculate_rewards_from_functions", "reward", after=pairs.judged),
    # The policy's forward belongs to training; the other one is the reference.
    Hook(f"{_PAIRS}._forward", **either(buffer.without_gradients, "reference")),
    Hook(f"{_PAIRS}._move_model_to_vllm", "sync", before=weights.begins, after=weights.ends),
    Hook(f"{_PAIRS}.training_step", "train", after=loop.micro_ends),
    Hook(f"{_PAIRS}._maybe_log_save_evaluate", "other", after=loop.loop.step_did_more),
)

_ASYNC_GRPO = "trl.experimental.async_grpo"
_ASYNC_DISTILLATION = "trl.experimental.async_distillation"
_GRPO_TRAINER = f"{_ASYNC_GRPO}.async_grpo_trainer"
_DISTILLATION_TRAINER = f"{_ASYNC_DISTILLATION}.async_distillation_trainer"
_CHILD = f"{_ASYNC_GRPO}.async_rollout_worker:_AsyncRolloutLoop"
_TEACHER = f"{_ASYNC_DISTILLATION}.async_rollout_worker:_AsyncRolloutLoop"
_TURN = "_generate_one_turn"
_TRANSFER = f"{_ASYNC_GRPO}.weight_transfer:WeightTransferClient"


def _of_trainer(module: str, trainer: str) -> tuple[Hook, ...]:
    owner = f"{module}:{trainer}"
    return (
        Hook(f"{module}:RolloutQueueDataset.__init__", after=rollouts.queue_known),
        Hook(f"{module}:RolloutQueueDataset.__iter__", "wait", after=rollouts.given),
        Hook(f"{module}:DataCollatorForRollout.torch_call", after=rollouts.collated),
        Hook(f"{owner}.compute_loss", "train"),
        Hook(f"{owner}._sync_weight", "sync", before=weights.begins, after=weights.published),
        phase_row("gather", f"{owner}._streaming_iter", after=weights.streamed),
    )


_ASYNC = in_versions(
    ">=1.0",
    *_of_trainer(_GRPO_TRAINER, "AsyncGRPOTrainer"),
    # The queue is one of multiprocessing's, or, where samples are made in a thread, of threads.
    Hook("multiprocessing.queues:Queue.get", after=rollouts.taken),
    Hook("queue:Queue.get", after=rollouts.taken),
    *formerly(
        {_CHILD: f"{_ASYNC_GRPO}.async_rollout_worker:AsyncRolloutWorker"},  # before 1.6
        Hook(f"{_CHILD}._generate_one", before=rollouts.begins, after=rollouts.ends),
        Hook(f"{_CHILD}.{_TURN}", "rollout", before=rollouts.asks, after=rollouts.turn_ends),
        Hook(f"{_CHILD}._execute_tool_calls", "env", after=rollouts.tools_end),
        Hook(f"{_CHILD}._score_group", "reward", before=rollouts.judging, after=rollouts.judged),
    ),
    Hook(
        "asyncio:to_thread",
        before=rollouts.function_begins,
        after=rollouts.function_ends,
        stages=("reward",),
    ),
)

_ASYNC_SINCE_1_6 = in_versions(
    ">=1.6",
    Hook(f"{_CHILD}.__init__", after=rollouts.started),
    phase_row("transfer", f"{_TRANSFER}.send_weights"),
    *methods(_TRANSFER, "pause resume", "wait"),
)

_LATER = in_versions(
    ">=1.10",  # somewhere between the versions that are looked at: absence is no problem
    *_of_trainer(_DISTILLATION_TRAINER, "AsyncDistillationTrainer"),
    *(
        phase_row("transfer", f"{module}:save_lora_adapter", after=weights.adapter_saved)
        for module in (_GRPO_TRAINER, _DISTILLATION_TRAINER)
    ),
    Hook(f"{_TEACHER}.__init__", after=rollouts.started),
    Hook(f"{_TEACHER}._generate_and_score_one", before=rollouts.begins, after=rollouts.ends_judged),
    Hook(f"{_TEACHER}.{_TURN}", "rollout", before=rollouts.asks, after=rollouts.turn_ends),
    Hook(f"{_TEACHER}._score_with_teacher", "reference"),
    phase_row("transfer", f"{_CLIENT}.update_named_params", weights.described),
    optional=True,
)

HOOKS = _LOOP + _TRAINERS + _FUNCTIONS + _ENGINE + _ONLINE_DPO + _ASYNC + _ASYNC_SINCE_1_6 + _LATER
