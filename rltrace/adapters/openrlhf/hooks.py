"""Which functions of OpenRLHF are watched, and in which versions they are.

Most methods are of Ray actor classes: Ray copies each onto a class of its own, and the hook goes
where a worker loads that (`ray_actors`).
"""

from __future__ import annotations

from collections.abc import Mapping

from rltrace.adapters.openrlhf import controller, engine, rollout, training, verdicts
from rltrace.adapters.table.logged import logged
from rltrace.adapters.table.rows import either, formerly, in_versions, methods
from rltrace.adapters.table.weights import phase_row
from rltrace.hooks.hook import Hook

_BASE = "openrlhf.trainer.ppo_trainer:BasePPOTrainer"
_SYNC = "openrlhf.trainer.ppo_trainer:PPOTrainer"
_ASYNC = "openrlhf.trainer.ppo_trainer_async"
_LEARNING = f"{_ASYNC}:TrainingActor"
_MAKER = "openrlhf.trainer.ppo_utils.experience_maker"
_RAY = "openrlhf.trainer.ray"
_POLICY = f"{_RAY}.ppo_actor"
_CRITIC = f"{_RAY}.ppo_critic"
_AGENT = f"{verdicts.OWN}:SingleTurnAgentExecutor"
_TURNS = f"{verdicts.OWN}:MultiTurnAgentExecutor"
_WORKER = f"{_RAY}.vllm_worker_wrap:WorkerWrap"

_GENERATOR = "openrlhf.trainer.ppo_utils.samples_generator:SamplesGenerator"
_ENGINE = f"{_RAY}.vllm_engine:RolloutRayActor"
_BEFORE = {
    _GENERATOR: f"{_MAKER}:SamplesGenerator",  # before 0.9.9
    _ENGINE: f"{_RAY}.vllm_engine:LLMRayActor",  # before 0.10.2
}

_CONTROLLER = (
    Hook(f"{_SYNC}.fit", before=controller.fit_begins, after=controller.loop.ends),
    Hook(f"{_LEARNING}.fit", before=controller.fit_begins, after=controller.loop.ends),
    Hook(f"{_BASE}.init_checkpoint_states", after=controller.resumed),
    Hook("ray.util.queue:Queue.get", controller.next_batch, stages=("step", "wait")),
    Hook("ray.util.queue:Queue.put", "wait"),
    Hook(f"{_BASE}.train_step", before=controller.train_begins, after=controller.train_ends),
    Hook(f"{_MAKER}:RemoteExperienceMaker.make_experience_batch", "wait"),
    Hook(f"{_MAKER}:RemoteExperienceMaker.make_experience", after=controller.experience_made),
    Hook(f"{_MAKER}:RemoteExperienceMaker.compute_advantages_and_returns", "other"),
    Hook(f"{_BASE}.ppo_train", "wait"),
    # The asynchronous trainer waits for the lock, or for engines to pause, before it calls the
    # other one: OpenRLHF's `timing/broadcast` is the outer one, the update is the inner one.
    Hook(f"{_LEARNING}.broadcast_to_vllm", "other", before=controller.broadcast_begins),
    Hook(
        f"{_BASE}.broadcast_to_vllm", "sync", before=controller.bringing, after=controller.brought
    ),
    Hook(
        f"{_BASE}.save_logs_and_checkpoints",
        controller.saving,
        before=logged("logs_dict"),
        after=controller.loop.step_did_more,
        stages=("checkpoint", "other"),
    ),
    Hook(f"{_BASE}.save_best_checkpoint", "checkpoint", versions=">=0.9.9"),
    Hook(f"{_SYNC}.evaluate", "eval", after=controller.loop.step_did_more),
    Hook(f"{_ASYNC}:GenerateSamplesActor._run_eval", "eval", versions=">=0.9.7"),
    Hook(f"{_ASYNC}:VLLMLock.acquire", "wait"),
)

_SAMPLES = formerly(
    _BEFORE,
    Hook(f"{_GENERATOR}.generate_samples", controller.next_batch, stages=("step", "wait")),
    Hook(f"{_GENERATOR}._generate_vllm", before=controller.generating, after=controller.generated),
    Hook(f"{_GENERATOR}._process_response_into_experience", after=controller.arrived),
)

_TENSORS = "update_weight update_weight_cuda_ipc"

_ROLLOUT = formerly(
    _BEFORE,
    Hook(f"{_ENGINE}.__init__", after=engine.started),
    Hook(f"{_ENGINE}.generate_responses", before=verdicts.group_begins),
    Hook(f"{_ENGINE}.generate", "rollout", before=rollout.asking, after=rollout.requested),
    *methods(
        _ENGINE,
        _TENSORS,
        engine.tensor_stage,
        phase="load",
        before=engine.tensor_comes,
        after=engine.tensor_loaded,
        stages=("sync",),
    ),
    *methods(_ENGINE, "sleep wake_up", "switch"),
    *in_versions(">=0.9.7", *methods(_ENGINE, "pause_generation resume_generation", "wait")),
    Hook(f"{_AGENT}.execute", before=rollout.begins, after=verdicts.sample_ends),
    Hook(f"{_TURNS}.execute", before=rollout.begins, after=verdicts.sample_ends),
    Hook(f"{_TURNS}.__init__", before=verdicts.environment_known, stages=("env",)),
    *(
        Hook(f"{_AGENT}.{method}", "reward", before=before, after=verdicts.judged)
        for method, before in (
            ("_fetch_rewards_via_func", verdicts.verdict_wanted),
            ("_fetch_rewards_via_http", verdicts.judging),
        )
    ),
    *methods(_WORKER, _TENSORS, after=engine.worker_loaded),
)

_MODELS = (
    Hook(f"{_RAY}.launcher:BaseDistributedActor.__init__", after=training.placed),
    *(
        Hook(
            f"{actor}.execute_batch",
            before=training.batch_given,
            **either(training.is_forward, stage),
        )
        for actor, stage in (
            (f"{_POLICY}:PolicyModelActor", "logprob"),
            (f"{_CRITIC}:CriticModelActor", "value"),
            (f"{_RAY}.launcher:ReferenceModelActor", "reference"),
            (f"{_RAY}.launcher:RewardModelActor", "reward"),
        )
    ),
    Hook(f"{_POLICY}:ActorPPOTrainer.__init__", after=training.policy_built),
    Hook(f"{_POLICY}:ActorPPOTrainer.ppo_train", "train", before=training.training),
    Hook(f"{_CRITIC}:CriticPPOTrainer.ppo_train", "train", before=training.training),
    phase_row(
        "transfer", f"{_POLICY}:ActorPPOTrainer.broadcast_to_vllm", training.sending, training.sent
    ),
    *methods(f"{_POLICY}:PolicyModelActor", "reload_states offload_states", "switch"),
    *methods(f"{_POLICY}:PolicyModelActor", "save_checkpoint save_model", "checkpoint"),
    *methods(f"{_CRITIC}:CriticModelActor", "reload_states offload_states", "switch"),
    *methods(f"{_CRITIC}:CriticModelActor", "save_checkpoint save_model", "checkpoint"),
)

HOOKS = (*_CONTROLLER, *_SAMPLES, *_ROLLOUT, *_MODELS)

ROLES: Mapping[str, str] = {
    _SYNC: "controller",
    f"{_ASYNC}:PPOTrainerAsync": "controller",
    _LEARNING: "controller",
    f"{_ASYNC}:GenerateSamplesActor": "generator",
    f"{_ASYNC}:VLLMLock": "lock",
    _ENGINE: "rollout",
    _BEFORE[_ENGINE]: "rollout",
    f"{_POLICY}:PolicyModelActor": "learner",
    f"{_CRITIC}:CriticModelActor": "critic",
    f"{_RAY}.launcher:ReferenceModelActor": "reference",
    f"{_RAY}.launcher:RewardModelActor": "reward",
}
"""Ray actor class -> role."""
