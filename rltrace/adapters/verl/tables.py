"""verl's own words: its timers, its actors, its transports.

`LABELS` serves the adapter and the importer: verl's timer names are the names of its `timing_s/*`
metrics, and hardly change between versions.
"""

from __future__ import annotations

from collections.abc import Mapping

from rltrace.adapters.table.timers import labelled
from rltrace.trace.vocabulary import Transport

LABELS = labelled(
    step="step",
    rollout="gen gen_max generate_async generate_sequences",  # `gen_max`: ReMax's greedy baseline
    env="tool_calls",
    reward="compute_score reward",
    logprob="old_log_prob",
    reference="ref",
    value="values",
    other="adv dump_rollout_generations start_profile stop_profile",
    train="update_critic update_actor",
    # verl puts the prefix on twice.
    sync="update_weights sync_rollout_weights timing_s/param_sync reshard",
    switch="switch_to_trainer switch_to_rollout",
    wait="switch_wait wait_for_enough_samples",
    eval="testing rollouter/validate_time",
    checkpoint="save_checkpoint",
)
"""verl's timers (and `timing_s/` metrics)."""

SEEN_ELSEWHERE = frozenset({"rollout", "reward", "logprob", "reference", "value", "train", "sync"})
"""Stages whose work the trainer only waits for: it is seen in the processes that do it. The timer
is then the wait, and what no worker does in it (dispatch, transfer of the batch) is exposed."""

SEEN_BY_CALL = frozenset({"generate_sequences", "tool_calls", "compute_score"})
"""Timers of the agent loop around calls that are hooked themselves."""

_COLOCATED = "verl.single_controller.ray.base"
_LEGACY = ("verl.workers.fsdp_workers", "verl.workers.megatron_workers")
_SERVERS = "verl.workers.rollout"

ROLES: Mapping[str, str] = {
    "verl.trainer.main_ppo:TaskRunnerV1": "controller",
    "verl.trainer.main_ppo:TaskRunner": "controller",
    "verl.trainer.main_ppo_v0:BaseTaskRunner": "controller",
    "verl.trainer.main_ppo_v0:TaskRunner": "controller",
    "verl.trainer.main_ppo_sync:TaskRunner": "controller",
    "verl.experimental.one_step_off_policy.main_ppo:OneStepTaskRunner": "controller",
    "verl.experimental.fully_async_policy.fully_async_main:FullyAsyncTaskRunner": "controller",
    "verl.experimental.fully_async_policy.fully_async_trainer:FullyAsyncTrainer": "controller",
    "verl.experimental.fully_async_policy.fully_async_rollouter:FullyAsyncRollouter": "rollouter",
    f"{_COLOCATED}:WorkerDict": "learner",  # defined in a function; sent by value, that is lost
    f"{_COLOCATED}:FusedWorker": "learner",
    "verl.workers.engine_workers:ActorRolloutRefWorker": "learner",
    "verl.workers.engine_workers:TrainingWorker": "learner",
    "verl.experimental.agent_loop.agent_loop:AgentLoopWorker": "agent-loop",
    "verl.experimental.agent_loop.agent_loop:AgentLoopWorkerBase": "agent-loop",
    "verl.experimental.agent_loop.agent_loop:GlobalRequestLoadBalancer": "router",
    "verl.workers.rollout.router:GlobalRequestLoadBalancer": "router",
    "verl.workers.rollout.llm_server:GlobalRequestLoadBalancer": "router",
    "verl.experimental.reward_loop.reward_loop:RewardLoopWorker": "reward",
    "verl.experimental.reward.reward_manager:RewardManagerWorker": "reward",
    "verl.checkpoint_engine.base:CheckpointEngineWorker": "rollout",
    f"{_SERVERS}.vllm_rollout.vllm_async_server:vLLMHttpServerBase": "rollout",
    f"{_SERVERS}.vllm_rollout.vllm_async_server:vLLMHttpServer": "rollout",
    f"{_SERVERS}.sglang_rollout.async_sglang_server:SGLangHttpServer": "rollout",
    f"{_SERVERS}.trtllm_rollout.trtllm_async_server:TRTLLMHttpServer": "rollout",
    **{f"{module}:ActorRolloutRefWorker": "learner" for module in _LEGACY},
    **{f"{module}:CriticWorker": "critic" for module in _LEGACY},
    **{f"{module}:RewardModelWorker": "reward" for module in _LEGACY},
}
"""Ray actor class -> role. Any other (a rollout server of the user's) has its name as its role."""

TRANSPORTS: Mapping[str, int] = {
    "nccl": Transport.NCCL,
    "naive/vllm": Transport.CUDA_IPC,
    "naive/sglang": Transport.CUDA_IPC,
}
"""Checkpoint engine (the colocated one: with the name of the rollout) -> what carries the weights.
The others (nixl, mooncake, kimi, hccl) have no word in the vocabulary yet and stay unknown."""
