"""Who OpenRLHF's actors are, and what they count."""

from __future__ import annotations

from collections.abc import Mapping

_TRAINER = "openrlhf.trainer.ppo_trainer"
_ASYNC = "openrlhf.trainer.ppo_trainer_async"
_RAY = "openrlhf.trainer.ray"

ROLES: Mapping[str, str] = {
    f"{_TRAINER}:PPOTrainer": "controller",
    f"{_ASYNC}:PPOTrainerAsync": "controller",
    f"{_ASYNC}:TrainingActor": "controller",
    f"{_ASYNC}:GenerateSamplesActor": "generator",
    f"{_ASYNC}:VLLMLock": "lock",
    f"{_RAY}.vllm_engine:RolloutRayActor": "rollout",
    f"{_RAY}.vllm_engine:LLMRayActor": "rollout",  # its name before 0.10.2
    f"{_RAY}.ppo_actor:PolicyModelActor": "learner",
    f"{_RAY}.ppo_critic:CriticModelActor": "critic",
    f"{_RAY}.launcher:ReferenceModelActor": "reference",
    f"{_RAY}.launcher:RewardModelActor": "reward",
}
"""Ray actor class -> role."""

RPC_SECONDS = "weights/rpc_seconds"
"""Counter of a rollout actor, cumulative, read with each update: the time in which a call that
brings it one tensor was at work. OpenRLHF makes such a call for each tensor and waits for it, so
what an update takes beyond `WORKER_SECONDS` is the price of the calls themselves."""

WORKER_SECONDS = "weights/worker_seconds"
"""Counter of vLLM's worker, likewise: the time in which it received a tensor and loaded it. On a
GPU that is the host's part, as both are only begun there."""
