"""NeMo-RL: timer, rollouts by sample, passes of the policy, refits.

The asynchronous trainer generates in the collector's process; what its driver times as exposed
generation is waiting. Nothing in a sample names it, so of lag only an average is known.
"""

from __future__ import annotations

from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.logged import logged
from rltrace.adapters.table.rows import methods
from rltrace.adapters.table.stated import at, not_none
from rltrace.adapters.table.steps import step_is
from rltrace.adapters.table.timers import labelled, start_stop
from rltrace.adapters.table.weights import shape_bytes, version_is, weights_moved
from rltrace.hooks.hook import Call, Hook
from rltrace.trace.vocabulary import Finish, SyncRole

LABELS = labelled(
    # Weights and log-probs, the two kinds apart, are seen by call.
    no_span="policy_and_reference_logprobs get_logprobs/ get_reference_policy_logprobs/ "
    "policy_training/ prepare_for_generation/ weight_sync",
    step="total_step_time",
    rollout="generation",
    wait="exposed_generation idle/",
    train="policy_training",
    switch="prepare_for_generation/total offload_before_refit training_prep logprob_inference_prep",
    sync="prepare_for_generation",  # 0.3
    data="data_processing",
    # The baselines: verdicts are reached while it generates.
    other="reward_calculation dynamic_sampling",
    checkpoint="checkpointing",
    eval="total_validation_time",
)
"""NeMo-RL's timers; the metric is `timing/train/<label>`."""

_ROLLOUTS = "nemo_rl.experience.rollouts"
_GRPO = "nemo_rl.algorithms.grpo"
_POLICY = "nemo_rl.models.policy.lm_policy:Policy"
_TIMER = "nemo_rl.utils.timer:Timer"


class _Weights:
    size_bytes = -1  # what a refit moves: told once, when it is prepared
    version = 0


def training_begins(call: Call) -> None:
    """In either trainer; steps count on from the checkpoint."""
    shares = at(call.argument("master_config"), "policy.generation.colocated.enabled")
    is_async = call.function.__name__.startswith("async")
    known = {True: "colocated", False: "disaggregated"}
    placement = "async" if is_async else known.get(shares, "")
    call.recorder.describe(role="controller", placement=placement)
    step = at(call.argument("grpo_save_state"), "current_step")
    if step is not None:
        call.recorder.step = int(step) - 1


def refit_prepared(call: Call) -> None:
    """The names, shapes and types of what a refit will move are known."""
    described = (call.result or {}).values()
    sizes = [shape_bytes(*each[:2]) for each in described if isinstance(each, list | tuple)]
    known = [size for size in sizes if size is not None]
    _Weights.size_bytes = sum(known) if sizes and known == sizes else -1


def refitted(call: Call) -> None:
    if call.exception is None:
        _Weights.version += 1
        weights_moved(call, SyncRole.SOURCE, _Weights.version, _Weights.size_bytes)


def sample_begins(call: Call) -> None:
    call.state = call.row("trajectories")


def sample_ends(call: Call) -> None:
    if call.state is None or call.result is None:
        return
    told = call.result[1]
    finish = Finish.LENGTH if told.get("truncated") else Finish.STOP
    known = not_none(turns=told.get("turn_count"), response_tokens=told.get("assistant_tokens"))
    columns = {name: int(value) for name, value in known.items()}
    call.state.set(end_ns=call.end_ns, finish=finish, **columns)


_figures = logged("metrics", "prefix")


def step_logged(call: Call) -> None:
    """Its figures; what is logged as a step's training also says which one it is."""
    _figures(call)
    if call.argument("prefix") == "train" and call.recorder.open_step is not None:
        step_is(call.recorder, int(call.argument("step")))


class NemoRL(TableAdapter):
    framework = "nemo_rl"
    versions = ">=0.3,<0.8"
    labels = LABELS
    calls = (
        Hook(f"{_GRPO}:grpo_train", before=training_begins),
        Hook(f"{_GRPO}:async_grpo_train", before=training_begins, versions=">=0.4"),
        *methods(_ROLLOUTS, "run_multi_turn_rollout run_async_multi_turn_rollout", "rollout"),
        Hook(f"{_ROLLOUTS}:run_async_nemo_gym_rollout", "rollout", versions=">=0.5"),
        Hook(f"{_ROLLOUTS}:run_sample_multi_turn_rollout", before=sample_begins, after=sample_ends),
        Hook(f"{_ROLLOUTS}:calculate_rewards", "reward"),
        Hook(f"{_POLICY}.get_reference_policy_logprobs", "reference"),
        Hook(f"{_POLICY}.get_logprobs", "logprob"),
        Hook(f"{_POLICY}.train", "train"),
        Hook(f"{_POLICY}.prepare_refit_info", after=refit_prepared),
        Hook(f"{_GRPO}:refit_policy_generation", "sync", after=refitted),
        Hook(
            "nemo_rl.algorithms.async_utils.replay_buffer:ReplayBufferImpl.sample",
            before=version_is("current_weight_version"),
            alternates=("nemo_rl.algorithms.async_utils:ReplayBuffer.sample",),
            versions=">=0.4",
        ),
    )
    timers = start_stop(
        f"{_TIMER}.start", f"{_TIMER}.stop", LABELS, lambda call: str(call.argument("label"))
    )
    sinks = (Hook("nemo_rl.utils.logger:Logger.log_metrics", before=step_logged),)
