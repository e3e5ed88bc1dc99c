"""Which functions of verl are watched, and in which versions they are."""

from __future__ import annotations

from rltrace.adapters.table.logged import logged
from rltrace.adapters.table.rows import either, in_versions, methods
from rltrace.adapters.table.weights import phase_row
from rltrace.adapters.verl import controller, fates, objective, rollout, weights
from rltrace.hooks.hook import Hook

_TRAINER = "verl.trainer.ppo.ray_trainer:RayPPOTrainer"
_V1 = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
_FULLY_ASYNC = "verl.experimental.fully_async_policy.fully_async_trainer:FullyAsyncTrainer"
_BUFFER = "verl.trainer.ppo.v1.replay_buffer"
_LOOP = "verl.experimental.agent_loop.agent_loop"
_WORKER = f"{_LOOP}:AgentLoopWorker"
_RUN = "_run_agent_loop"
_TOOLS = "verl.experimental.agent_loop.tool_agent_loop:ToolAgentLoop"
_SINGLE = "verl.experimental.agent_loop.single_turn_agent_loop:SingleTurnAgentLoop"
_CLIENT = "verl.workers.rollout.llm_server:LLMServerClient"
_CLIENT_BEFORE = f"{_LOOP}:AsyncLLMServerManager"
_REWARD_LOOP = "verl.experimental.reward_loop.reward_loop:RewardLoopWorker"
_ENGINE_WORKERS = "verl.workers.engine_workers"
_POLICY = f"{_ENGINE_WORKERS}:ActorRolloutRefWorker"
_TRAINING = f"{_ENGINE_WORKERS}:TrainingWorker"
_LEGACY = ("verl.workers.fsdp_workers", "verl.workers.megatron_workers")
_CHECKPOINT = "verl.checkpoint_engine.base"
_CHECKPOINT_ENGINE = f"{_CHECKPOINT}:CheckpointEngine"
_ENGINES = "verl.workers.engine"
_MEGATRON = "verl.utils.megatron_utils"
_VLLM = "verl.workers.rollout.vllm_rollout"
_VLLM_SERVER = f"{_VLLM}.vllm_async_server:vLLMHttpServer"
_SGLANG = "verl.workers.rollout.sglang_rollout.async_sglang_server:SGLangHttpServer"
_TRTLLM = "verl.workers.rollout.trtllm_rollout.trtllm_async_server:TRTLLMHttpServer"

_DRIVER = (
    Hook(
        "verl.utils.profiler.performance:_timer",
        controller.timer_stage,
        name="timer",
        before=controller.timer_named,
        stages=("step", "wait", "switch", "checkpoint", "eval", "other"),
        per_item=False,
    ),
    Hook("verl.utils.tracking:Tracking.log", before=logged("data")),
    Hook(f"{_TRAINER}._load_checkpoint", before=objective.configured, after=controller.resumed),
    Hook(f"{_TRAINER}._balance_batch", "other"),
    Hook(f"{_TRAINER}._validate", "eval"),
    Hook(f"{_FULLY_ASYNC}.load_checkpoint", before=objective.configured, versions=">=0.8"),
    *in_versions(
        ">=0.9",
        Hook(f"{_V1}._load_checkpoint", before=objective.configured, after=controller.resumed),
        *methods(_V1, "_balance_batch _compute_metrics", "other"),
        Hook(f"{_V1}._validate", "eval"),
        Hook(f"{_V1}._fetch_one_gen_batch", "data"),
        # The first time, this waits until the agent loop workers are up.
        Hook(f"{_V1}._submit_batch_to_rollout", "wait"),
    ),
)

# Of 0.8's main_ppo_sync, whose own functions no hook reaches.
_FORERUNNER = in_versions(
    ">=0.8,<0.9",
    Hook("verl.utils.tracking:Tracking.__init__", before=objective.tracked),
    Hook(
        "verl.trainer.ppo.padding_utils:upsample_batch_to_divisible_size", before=fates.batch_padded
    ),
    Hook("verl.utils.tensordict_utils:assign_non_tensor_data", before=controller.batch_given_out),
)

_FATES = (
    *in_versions(
        ">=0.9",
        Hook(f"{_BUFFER}:ReplayBuffer.sample", after=fates.sampled),
        Hook(f"{_BUFFER}:ReplayBufferAsync.sample", after=fates.sampled),
        Hook(f"{_BUFFER}:ReplayBuffer._evict_terminal_groups", before=fates.evicted),
    ),
    Hook(f"{_LOOP}:AgentLoopManager.generate_sequences", after=fates.rows_arrive),
    Hook("verl.protocol:DataProto.reorder", after=fates.rows_reordered),
    Hook(f"{_TRAINER}._update_actor", before=fates.rows_trained, versions=">=0.7"),
    Hook(
        "verl.trainer.ppo.ray_trainer:compute_advantage", before=fates.rows_trained, versions="<0.7"
    ),
)

_ROLLOUT = (
    *in_versions(">=0.7", Hook(f"{_WORKER}.{_RUN}", before=rollout.begins, after=rollout.ends)),
    *in_versions(
        "<0.7",
        Hook(f"{_WORKER}Base.{_RUN}", before=rollout.begins, after=rollout.ends_with_score),
        Hook(f"{_SINGLE}.run", after=rollout.generated),
        Hook(f"{_TOOLS}.run", after=rollout.generated),
    ),
    *(
        Hook(
            f"{client}.generate",
            before=rollout.asking,
            after=rollout.requested,
            versions=versions,
            **either(rollout.trains, "rollout", "eval"),
        )
        for client, versions in ((_CLIENT, ">=0.8"), (_CLIENT_BEFORE, "<0.8"))
    ),
    *(
        Hook(
            f"{client}._acquire_server",
            "other",
            name="acquire server",
            after=rollout.acquired,
            versions=versions,
        )
        for client, versions in ((_CLIENT, ">=0.8"), (_CLIENT_BEFORE, ">=0.7,<0.8"))
    ),
    Hook(f"{_TOOLS}._call_tool", "env"),
)

# What a server generates is seen where it was asked for, which alone knows whether it is rollout,
# validation or a judge's answer.
_SERVERS = (
    *in_versions("<0.7", *methods(f"{_VLLM_SERVER}Base", "wake_up sleep", "switch")),
    *in_versions(">=0.7", *methods(_VLLM_SERVER, "wake_up sleep", "switch")),
    *methods(_SGLANG, "wake_up sleep", "switch"),
    *in_versions(">=0.8", *methods(_TRTLLM, "wake_up sleep", "switch")),
)

_REWARD = (
    Hook("verl.trainer.ppo.reward:_call_with_kwargs", "reward", name="reward function"),
    Hook("verl.trainer.ppo.reward:_call_with_kwargs_async", "reward", name="reward function"),
    Hook("verl.utils.reward_score:default_compute_score", "reward"),
    *in_versions(
        ">=0.7",
        Hook(f"{_WORKER}._compute_score", before=rollout.judging, after=rollout.judged),
        Hook(f"{_REWARD_LOOP}.compute_score", **either(rollout.judges, "reward")),
    ),
    *in_versions(
        "<0.7",
        Hook("verl.experimental.reward.reward_manager:RewardManagerWorker.compute_score", "reward"),
        Hook("verl.trainer.ppo.reward:compute_reward", "reward"),
    ),
)

_TRAINING_WORKERS = (
    Hook("verl.single_controller.base.worker:Worker.__init__", after=controller.placed),
    Hook("verl.utils.model:print_model_size", before=controller.model_built),
    *in_versions(
        ">=0.7",
        Hook(f"{_POLICY}.compute_log_prob", "logprob", before=controller.batch_given),
        Hook(f"{_POLICY}.compute_ref_log_prob", "reference", before=controller.batch_given),
        Hook(f"{_POLICY}.update_actor", "train", before=controller.batch_given),
        *(
            Hook(
                f"{_TRAINING}.{method}",
                before=controller.batch_given,
                **either(controller.is_critic, stage),
            )
            for method, stage in (("infer_batch", "value"), ("train_mini_batch", "train"))
        ),
    ),
)

_SENDING = weights.weights_begin, weights.weights_sent
_WEIGHTS = (
    *in_versions(
        ">=0.7",
        Hook(
            f"{_CHECKPOINT_ENGINE}Manager.update_weights",
            after=weights.weights_updated,
            **either(weights.is_more_than_waiting, "sync", "wait"),
            dose="",  # the workers that it waits for are delayed
        ),
        *methods(f"{_CHECKPOINT_ENGINE}Manager", "sleep_replicas wake_up_replicas", "switch"),
        phase_row("transfer", f"{_POLICY}.update_weights", *_SENDING),
        phase_row(
            "load",
            f"{_CHECKPOINT_ENGINE}Worker.update_weights",
            weights.weights_begin,
            weights.weights_taken,
        ),
        phase_row("load", f"{_VLLM}.utils:vLLMColocateWorkerExtension.update_weights_from_ipc"),
    ),
    *in_versions("<0.7", *methods(f"{_LOOP}:AgentLoopManager", "wake_up sleep", "switch")),
    *(
        phase_row(
            "gather",
            f"{_ENGINES}.{engine.lower()}.transformer_impl:{engine}Engine.get_per_tensor_param",
            after=reader,
            stream=stream,
            versions=">=0.8" if engine == "Automodel" else ">=0.7",
        )
        for engine in ("FSDP", "Megatron", "VeOmni", "TorchTitan", "Automodel")
        # The call last, around the other: what it takes to have the stream watched is its time.
        for stream, reader in ((0, weights.weight_streamed), (None, None))
    ),
    Hook(f"{_CHECKPOINT}:merge_weight_chunks", after=weights.weight_arrived, versions=">=0.8"),
)

# The workers before the engines. Their weights are seen from inside, where the tensors are handed
# out by an expression of their own (FSDP) or by a generator (Megatron without a bridge).
_WORKERS_BEFORE = (
    *(
        Hook(f"{module}:{method}", stage, versions=versions)
        for module in _LEGACY
        for method, stage, versions in (
            ("ActorRolloutRefWorker.generate_sequences", "rollout", "<0.8"),
            ("ActorRolloutRefWorker.compute_log_prob", "logprob", "<0.8"),
            ("ActorRolloutRefWorker.compute_ref_log_prob", "reference", "<0.8"),
            ("ActorRolloutRefWorker.update_actor", "train", "<0.8"),
            ("ActorRolloutRefWorker.trainer_mode", "switch", "<0.7"),
            ("CriticWorker.compute_values", "value", "<0.8"),
            ("CriticWorker.update_critic", "train", "<0.8"),
            ("RewardModelWorker.compute_rm_score", "reward", "<0.7"),
        )
    ),
    *in_versions(
        "<0.8",
        *(
            phase_row("transfer", f"{module}:ActorRolloutRefWorker.rollout_mode", *_SENDING)
            for module in _LEGACY
        ),
        phase_row("gather", f"{_MEGATRON}:per_tensor_generator", after=weights.weight_streamed),
    ),
)

HOOKS = _DRIVER + _FORERUNNER + _FATES + _ROLLOUT + _SERVERS + _REWARD
HOOKS += _TRAINING_WORKERS + _WEIGHTS + _WORKERS_BEFORE
