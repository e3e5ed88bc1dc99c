"""Which functions of verl are watched, and in which versions they are.

Rows that share a purpose stand together. A range says where the function exists; the tests hold
each row to the sources of every version.
"""

from __future__ import annotations

from rltrace.adapters.verl import (
    controller,
    fates,
    forerunner,
    learner,
    objective,
    rollout,
    weights,
)
from rltrace.hooks.hook import Hook

_TRAINER = "verl.trainer.ppo.ray_trainer:RayPPOTrainer"
_V1 = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
_FULLY_ASYNC = "verl.experimental.fully_async_policy.fully_async_trainer:FullyAsyncTrainer"
_BUFFER = "verl.trainer.ppo.v1.replay_buffer"
_LOOP = "verl.experimental.agent_loop.agent_loop"
_TOOLS = "verl.experimental.agent_loop.tool_agent_loop:ToolAgentLoop"
_SINGLE = "verl.experimental.agent_loop.single_turn_agent_loop:SingleTurnAgentLoop"
_ENGINE_WORKERS = "verl.workers.engine_workers"
_POLICY = f"{_ENGINE_WORKERS}:ActorRolloutRefWorker"
_TRAINING = f"{_ENGINE_WORKERS}:TrainingWorker"
_LEGACY = ("verl.workers.fsdp_workers", "verl.workers.megatron_workers")
_CHECKPOINT = "verl.checkpoint_engine.base"
_ENGINES = "verl.workers.engine"
_VLLM = "verl.workers.rollout.vllm_rollout"
_SGLANG = "verl.workers.rollout.sglang_rollout.async_sglang_server:SGLangHttpServer"
_TRTLLM = "verl.workers.rollout.trtllm_rollout.trtllm_async_server:TRTLLMHttpServer"

_DRIVER = (
    Hook(
        "verl.utils.profiler.performance:_timer",
        controller.timer_stage,
        name="timer",
        before=forerunner.timer_named,
        stages=("step", "wait", "switch", "checkpoint", "eval", "other"),
        per_item=False,
    ),
    Hook("verl.utils.tracking:Tracking.log", before=controller.logged),
    Hook("verl.utils.tracking:Tracking.__init__", before=objective.tracked, versions=">=0.8,<0.9"),
    Hook(
        f"{_TRAINER}._load_checkpoint",
        before=objective.configured,
        after=controller.resumed,
    ),
    Hook(
        f"{_V1}._load_checkpoint",
        before=objective.configured,
        after=controller.resumed,
        versions=">=0.9",
    ),
    Hook(f"{_FULLY_ASYNC}.load_checkpoint", before=objective.configured, versions=">=0.8"),
    Hook(f"{_TRAINER}._balance_batch", "other"),
    Hook(f"{_V1}._balance_batch", "other", versions=">=0.9"),
    Hook(f"{_V1}._compute_metrics", "other", versions=">=0.9"),
    Hook(f"{_TRAINER}._validate", "eval"),
    Hook(f"{_V1}._validate", "eval", versions=">=0.9"),
    Hook(f"{_V1}._fetch_one_gen_batch", "data", versions=">=0.9"),
    # The first time, this waits until the agent loop workers are up.
    Hook(f"{_V1}._submit_batch_to_rollout", "wait", versions=">=0.9"),
)

_FATES = (
    Hook(f"{_BUFFER}:ReplayBuffer.sample", after=fates.sampled, versions=">=0.9"),
    Hook(f"{_BUFFER}:ReplayBufferAsync.sample", after=fates.sampled, versions=">=0.9"),
    Hook(f"{_BUFFER}:ReplayBuffer._evict_terminal_groups", before=fates.evicted, versions=">=0.9"),
    Hook(
        "verl.trainer.ppo.padding_utils:upsample_batch_to_divisible_size",
        before=forerunner.batch_padded,
        versions=">=0.8,<0.9",
    ),
    Hook(
        "verl.utils.tensordict_utils:assign_non_tensor_data",
        before=forerunner.batch_given_out,
        versions=">=0.8,<0.9",
    ),
    Hook(f"{_LOOP}:AgentLoopManager.generate_sequences", after=fates.rows_arrive),
    Hook("verl.protocol:DataProto.reorder", after=fates.rows_reordered),
    Hook(f"{_TRAINER}._update_actor", before=fates.rows_trained, versions=">=0.7"),
    Hook(
        "verl.trainer.ppo.ray_trainer:compute_advantage",
        before=fates.rows_trained,
        versions="<0.7",
    ),
)

_ROLLOUT = (
    Hook(
        f"{_LOOP}:AgentLoopWorker._run_agent_loop",
        before=rollout.begins,
        after=rollout.ends,
        versions=">=0.7",
    ),
    Hook(
        f"{_LOOP}:AgentLoopWorkerBase._run_agent_loop",
        before=rollout.begins,
        after=rollout.ends_with_score,
        versions="<0.7",
    ),
    Hook(f"{_SINGLE}.run", after=rollout.generated, versions="<0.7"),
    Hook(f"{_TOOLS}.run", after=rollout.generated, versions="<0.7"),
    Hook(
        "verl.workers.rollout.llm_server:LLMServerClient.generate",
        rollout.request_stage,
        before=rollout.asking,
        after=rollout.requested,
        stages=("rollout", "eval"),
        versions=">=0.8",
    ),
    Hook(
        f"{_LOOP}:AsyncLLMServerManager.generate",
        rollout.request_stage,
        before=rollout.asking,
        after=rollout.requested,
        stages=("rollout", "eval"),
        versions="<0.8",
    ),
    Hook(
        "verl.workers.rollout.llm_server:LLMServerClient._acquire_server",
        "other",
        name="acquire server",
        after=rollout.acquired,
        versions=">=0.8",
    ),
    Hook(
        f"{_LOOP}:AsyncLLMServerManager._acquire_server",
        "other",
        name="acquire server",
        after=rollout.acquired,
        versions=">=0.7,<0.8",
    ),
    Hook(f"{_TOOLS}._call_tool", "env"),
    *(
        Hook(
            f"verl.workers.{kind}_workers:ActorRolloutRefWorker.generate_sequences",
            "rollout",
            versions="<0.8",
        )
        for kind in ("fsdp", "megatron")
    ),
)

# What a server generates is seen where it was asked for, which alone knows whether it is rollout,
# validation or a judge's answer.
_SERVERS = tuple(
    Hook(f"{server}.{method}", "switch", versions=versions)
    for server, versions in (
        (f"{_VLLM}.vllm_async_server:vLLMHttpServerBase", "<0.7"),
        (f"{_VLLM}.vllm_async_server:vLLMHttpServer", ">=0.7"),
        (_SGLANG, ""),
        (_TRTLLM, ">=0.8"),
    )
    for method in ("wake_up", "sleep")
)

_REWARD = (
    Hook(
        f"{_LOOP}:AgentLoopWorker._compute_score",
        before=rollout.judging,
        after=rollout.judged,
        versions=">=0.7",
    ),
    Hook("verl.trainer.ppo.reward:_call_with_kwargs", "reward", name="reward function"),
    Hook("verl.trainer.ppo.reward:_call_with_kwargs_async", "reward", name="reward function"),
    Hook("verl.utils.reward_score:default_compute_score", "reward"),
    Hook(
        "verl.experimental.reward_loop.reward_loop:RewardLoopWorker.compute_score",
        rollout.judge_stage,
        stages=("reward",),
        versions=">=0.7",
    ),
    Hook(
        "verl.experimental.reward.reward_manager:RewardManagerWorker.compute_score",
        "reward",
        versions="<0.7",
    ),
    Hook("verl.trainer.ppo.reward:compute_reward", "reward", versions="<0.7"),
    *(
        Hook(f"{module}:RewardModelWorker.compute_rm_score", "reward", versions="<0.7")
        for module in _LEGACY
    ),
)

_TRAINING_WORKERS = (
    Hook("verl.single_controller.base.worker:Worker.__init__", after=learner.placed),
    Hook("verl.utils.model:print_model_size", before=learner.model_built),
    *(
        Hook(f"{_POLICY}.{method}", stage, before=learner.batch_given, versions=">=0.7")
        for method, stage in (
            ("compute_log_prob", "logprob"),
            ("compute_ref_log_prob", "reference"),
            ("update_actor", "train"),
        )
    ),
    Hook(
        f"{_TRAINING}.infer_batch",
        learner.critic_forward,
        stages=("value",),
        before=learner.batch_given,
        versions=">=0.7",
    ),
    Hook(
        f"{_TRAINING}.train_mini_batch",
        learner.critic_train,
        stages=("train",),
        before=learner.batch_given,
        versions=">=0.7",
    ),
    *(
        Hook(f"{module}:{method}", stage, versions="<0.8")
        for module in _LEGACY
        for method, stage in (
            ("ActorRolloutRefWorker.compute_log_prob", "logprob"),
            ("ActorRolloutRefWorker.compute_ref_log_prob", "reference"),
            ("ActorRolloutRefWorker.update_actor", "train"),
            ("CriticWorker.compute_values", "value"),
            ("CriticWorker.update_critic", "train"),
        )
    ),
)

_WEIGHTS = (
    Hook(
        f"{_CHECKPOINT}:CheckpointEngineManager.update_weights",
        weights.update_stage,
        after=weights.weights_updated,
        stages=("sync", "wait"),
        versions=">=0.7",
        dose="",  # the workers that it waits for are delayed
    ),
    Hook(f"{_CHECKPOINT}:CheckpointEngineManager.sleep_replicas", "switch", versions=">=0.7"),
    Hook(f"{_CHECKPOINT}:CheckpointEngineManager.wake_up_replicas", "switch", versions=">=0.7"),
    Hook(f"{_LOOP}:AgentLoopManager.wake_up", "switch", versions="<0.7"),
    Hook(f"{_LOOP}:AgentLoopManager.sleep", "switch", versions="<0.7"),
    Hook(
        f"{_POLICY}.update_weights",
        "sync",
        phase="transfer",
        before=weights.weights_begin,
        after=weights.weights_sent,
        versions=">=0.7",
    ),
    *(
        Hook(
            f"{_ENGINES}.{engine}.transformer_impl:{owner}.get_per_tensor_param",
            "sync",
            phase="gather",
            after=reader,
            stream=stream,
            versions=versions,
        )
        for engine, owner, versions in (
            ("fsdp", "FSDPEngine", ">=0.7"),
            ("megatron", "MegatronEngine", ">=0.7"),
            ("veomni", "VeOmniEngine", ">=0.7"),
            ("torchtitan", "TorchTitanEngine", ">=0.7"),
            ("automodel", "AutomodelEngine", ">=0.8"),
        )
        # The call last, around the other: what it takes to have the stream watched is its time.
        for stream, reader in ((0, weights.weight_streamed), (None, None))
    ),
    # Before the engines: from inside the workers, where the tensors are handed out by an expression
    # of their own (FSDP) or by a generator (Megatron without a bridge).
    *(
        Hook(
            f"{module}:ActorRolloutRefWorker.rollout_mode",
            "sync",
            phase="transfer",
            before=weights.weights_begin,
            after=weights.weights_sent,
            versions="<0.8",
        )
        for module in _LEGACY
    ),
    *(
        Hook(f"{module}:ActorRolloutRefWorker.trainer_mode", "switch", versions="<0.7")
        for module in _LEGACY
    ),
    Hook(
        "verl.utils.megatron_utils:per_tensor_generator",
        "sync",
        phase="gather",
        after=weights.weight_streamed,
        versions="<0.8",
    ),
    Hook(
        f"{_CHECKPOINT}:CheckpointEngineWorker.update_weights",
        "sync",
        phase="load",
        before=weights.weights_begin,
        after=weights.weights_taken,
        versions=">=0.7",
    ),
    Hook(f"{_CHECKPOINT}:merge_weight_chunks", after=weights.weight_arrived, versions=">=0.8"),
    Hook(
        f"{_VLLM}.utils:vLLMColocateWorkerExtension.update_weights_from_ipc",
        "sync",
        phase="load",
        versions=">=0.7",
    ),
)

HOOKS = (
    *_DRIVER,
    *_FATES,
    *_ROLLOUT,
    *_SERVERS,
    *_REWARD,
    *_TRAINING_WORKERS,
    *_WEIGHTS,
)
