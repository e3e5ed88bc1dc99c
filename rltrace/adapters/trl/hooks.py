"""Which functions of TRL, and of the training loop below it, are watched, and in which versions.

Ranges say where a function exists; the tests hold each row to the sources of several versions. What
TRL inherits from transformers and accelerate is hooked there, once for all of its trainers.
"""

from __future__ import annotations

from dataclasses import replace

from rltrace.adapters.trl import (
    buffer,
    generation,
    kept,
    loop,
    pairs,
    passes,
    queued,
    rollouts,
    verdicts,
    weights,
)
from rltrace.hooks.hook import Hook

_BASE = "transformers.trainer:Trainer"
_ACCELERATOR = "accelerate.accelerator:Accelerator"
_GENERATION = "trl.generation"
_PROFILED = "trl.extras.profiling:ProfilingContext"
_PAIRS = "trl.experimental.online_dpo.online_dpo_trainer:OnlineDPOTrainer"
_GRPO = "trl.trainer.grpo_trainer"
_RLOO = "trl.trainer.rloo_trainer"
_LATER = ">=1.10"  # somewhere between the versions that are looked at: absence is no problem

_LOOP = (
    Hook(f"{_BASE}._inner_training_loop", before=loop.fit_begins, after=loop.fit_ends),
    Hook(f"{_BASE}.get_batch_samples", loop.batch_wanted, stages=("step", "wait", "data")),
    Hook(
        f"{_BASE}.training_step",
        "train",
        before=queued.micro_begins,
        after=loop.micro_ends,
    ),
    Hook(f"{_ACCELERATOR}.backward", "train"),
    Hook(f"{_ACCELERATOR}.clip_grad_norm_", "train"),
    Hook("accelerate.optimizer:AcceleratedOptimizer.step", "train", after=loop.step_did_more),
    Hook(f"{_ACCELERATOR}.wait_for_everyone", "wait"),
    Hook("accelerate.utils:gather", "wait"),  # a rank's verdicts wait for those of all others
    Hook(f"{_BASE}._maybe_log_save_evaluate", "other", after=loop.step_did_more),
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
            loop.unless_evaluating("reward"),
            stages=("reward", "eval"),
            before=verdicts.judging,
            after=verdicts.all_asked,
        ),
        Hook(f"{trainer}._generate_and_score_completions", after=verdicts.judged),
        Hook(
            f"{trainer}._get_per_token_logps_and_entropies",
            passes.log_probs,
            stages=("reference", "logprob", "eval"),
            before=passes.batch_seen,
        ),
        Hook(f"{module}:use_adapter", before=passes.adapter_changed, after=passes.adapter_back),
        Hook(f"{trainer}.compute_loss", "train"),
    )
)

_TOOLS = (
    Hook(
        f"{_GRPO}:GRPOTrainer._tool_call_loop",
        loop.unless_evaluating("env"),
        stages=("env", "eval"),
    ),
)

_FUNCTIONS = (
    Hook(f"{_PROFILED}.__enter__", before=verdicts.function_begins, stages=("reward",)),
    Hook(f"{_PROFILED}.__exit__", before=verdicts.function_ends),
)

_ENGINE = (
    Hook(
        f"{_GENERATION}.vllm_generation:VLLMGeneration.generate",
        generation.engine_stage,
        stages=("rollout", "wait"),
    ),
    Hook(
        f"{_GENERATION}.vllm_generation:VLLMGeneration.sync_weights",
        "sync",
        before=weights.begins,
        after=weights.ends,
    ),
    Hook(f"{_GENERATION}.vllm_client:VLLMClient.update_named_param", before=weights.tensor_sent),
    Hook(
        f"{_GENERATION}.vllm_client:VLLMClient.update_named_params",
        "sync",
        phase="transfer",
        before=weights.described,
        versions=_LATER,
        optional=True,
    ),
    *(
        Hook(f"{_GENERATION}.vllm_client:VLLMClient.{method}", after=kept.answered)
        for method in ("generate", "chat")
    ),
    *(
        Hook(f"vllm.entrypoints.llm:LLM.{method}", after=kept.answered, optional=True)
        for method in ("generate", "chat")
    ),
    *(
        Hook(f"vllm.entrypoints.llm:LLM.{method}", "switch", optional=True)
        for method in ("sleep", "wake_up")
    ),
)

_ONLINE_DPO = (
    *(
        Hook(
            f"{_PAIRS}.{method}",
            pairs.generation_stage,
            stages=("rollout", "wait"),
            before=pairs.begins,
            after=pairs.ends,
        )
        for method in ("_generate", "_generate_vllm")
    ),
    Hook(f"{_PAIRS}._calculate_rewards_from_functions", "reward", after=pairs.judged),
    Hook(f"{_PAIRS}._forward", pairs.forward, stages=("reference",)),
    Hook(f"{_PAIRS}._move_model_to_vllm", "sync", before=weights.begins, after=weights.ends),
    Hook(f"{_PAIRS}.training_step", "train", after=loop.micro_ends),
    Hook(f"{_PAIRS}._maybe_log_save_evaluate", "other", after=loop.step_did_more),
)

# Two asynchronous trainers are built alike; the second one came later, and so did adapters.
_ASYNC = tuple(
    replace(hook, versions=versions, optional=versions == _LATER)
    for module, kind, versions in (
        ("trl.experimental.async_grpo.async_grpo_trainer", "AsyncGRPOTrainer", ">=1.0"),
        (
            "trl.experimental.async_distillation.async_distillation_trainer",
            "AsyncDistillationTrainer",
            _LATER,
        ),
    )
    for hook, versions in (
        (Hook(f"{module}:RolloutQueueDataset.__init__", after=queued.queue_known), versions),
        (Hook(f"{module}:RolloutQueueDataset.__iter__", "wait", after=queued.given), versions),
        (Hook(f"{module}:DataCollatorForRollout.torch_call", after=queued.collated), versions),
        (Hook(f"{module}:{kind}.compute_loss", "train"), versions),
        (
            Hook(
                f"{module}:{kind}._sync_weight",
                "sync",
                before=weights.begins,
                after=weights.published,
            ),
            versions,
        ),
        (
            Hook(
                f"{module}:{kind}._streaming_iter",
                "sync",
                phase="gather",
                after=weights.streamed,
            ),
            versions,
        ),
        (
            Hook(
                f"{module}:save_lora_adapter",
                "sync",
                phase="transfer",
                after=weights.adapter_saved,
            ),
            _LATER,
        ),
    )
)

# The queue is one of multiprocessing's, or, where samples are made in a thread, one of threads.
_QUEUES = (
    Hook("multiprocessing.queues:Queue.get", after=queued.taken, versions=">=1.0"),
    Hook("queue:Queue.get", after=queued.taken, versions=">=1.0"),
)

_CHILD = "trl.experimental.async_grpo.async_rollout_worker"
_TEACHER = "trl.experimental.async_distillation.async_rollout_worker"

_SAMPLES = (
    Hook(f"{_CHILD}:_AsyncRolloutLoop.__init__", after=rollouts.started, versions=">=1.6"),
    *(
        Hook(
            f"{_CHILD}:_AsyncRolloutLoop.{method}",
            stage,
            before=before,
            after=after,
            alternates=(f"{_CHILD}:AsyncRolloutWorker.{method}",),
            versions=">=1.0",
        )
        for method, stage, before, after in (
            ("_generate_one", None, rollouts.begins, rollouts.ends),
            ("_generate_one_turn", "rollout", rollouts.asks, rollouts.turn_ends),
            ("_execute_tool_calls", "env", None, rollouts.tools_end),
            ("_score_group", "reward", rollouts.judging, rollouts.judged),
        )
    ),
    Hook(
        "asyncio:to_thread",
        before=rollouts.function_begins,
        after=rollouts.function_ends,
        stages=("reward",),
        versions=">=1.0",
    ),
    *(
        Hook(
            f"{_TEACHER}:_AsyncRolloutLoop.{method}",
            stage,
            before=before,
            after=after,
            versions=_LATER,
            optional=True,
        )
        for method, stage, before, after in (
            ("__init__", None, None, rollouts.started),
            ("_generate_and_score_one", None, rollouts.begins, rollouts.ends_judged),
            ("_generate_one_turn", "rollout", rollouts.asks, rollouts.turn_ends),
            ("_score_with_teacher", "reference", None, None),
        )
    ),
)

_TRANSFER = (
    Hook(
        "trl.experimental.async_grpo.weight_transfer:WeightTransferClient.send_weights",
        "sync",
        phase="transfer",
        versions=">=1.6",
    ),
    *(
        Hook(
            f"trl.experimental.async_grpo.weight_transfer:WeightTransferClient.{method}",
            "wait",
            versions=">=1.6",
        )
        for method in ("pause", "resume")
    ),
)

HOOKS = (
    *_LOOP,
    *_TRAINERS,
    *_TOOLS,
    *_FUNCTIONS,
    *_ENGINE,
    *_ONLINE_DPO,
    *_ASYNC,
    *_QUEUES,
    *_SAMPLES,
    *_TRANSFER,
)
