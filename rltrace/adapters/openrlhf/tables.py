"""OpenRLHF's own words: what it logs, who its actors are.

`LABELS` serves the adapter and the importer: since 0.9.6 OpenRLHF logs these times once a step, in
seconds, as the controller sees them.
"""

from __future__ import annotations

from collections.abc import Mapping

LABELS: Mapping[str, str] = {
    "timing/generation": "rollout",
    "timing/make_experience": "other",
    "timing/ppo_train": "train",
    "timing/broadcast": "sync",
    "timing/step_total": "step",
}
"""OpenRLHF's timing -> stage. Making experience is the forwards of up to four models (policy,
reference, critic, reward) and the dispatch of them, in one number: no stage of its own.
In the asynchronous trainer `timing/broadcast` includes waiting for the lock that generation holds,
or for engines to pause, and `timing/generation` is of another process and of an earlier time;
`timing/step_total` is the sum of the four in the synchronous one, wall-clock in the other."""

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
