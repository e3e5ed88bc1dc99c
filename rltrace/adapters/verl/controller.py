"""Readers in the trainer's driver: its timers, where it goes on from.

The trainer and the replay buffer of V1's forerunner, verl 0.8's `python -m
verl.trainer.main_ppo_sync`, are defined in the program itself, so they come to the process that
runs them by value, which no import hook sees. What they call of verl's modules tells the same: here
(`batch_given_out`) and in `fates.batch_padded`.
"""

from __future__ import annotations

from typing import Any

from rltrace.adapters.table.stated import are_counts, at, not_none
from rltrace.adapters.verl.tables import LABELS, SEEN_BY_CALL, SEEN_ELSEWHERE
from rltrace.hooks.hook import Call

_step: list[Any] = []
"""The span of the step in progress."""


def timer_stage(call: Call) -> str | None:
    """The stage that a timer is in the process that runs it (`SEEN_ELSEWHERE` says why `wait`)."""
    label = call.argument("name")
    if label in SEEN_BY_CALL:
        return None
    stage = LABELS.get(label, "other")
    return "wait" if stage in SEEN_ELSEWHERE and label != "reshard" else stage


def timer_named(call: Call) -> None:
    """The span of a timer is named as verl names it."""
    name = call.argument("name")
    if call.span is not None:
        call.span.set(name=call.recorder.name(name))
    if name == "step":
        _step[:] = [call.span]


def batch_given_out(call: Call) -> None:
    """`assign_non_tensor_data(prompts, "global_steps", number)`, within the step: its number."""
    if call.argument("key") != "global_steps":
        return
    call.recorder.step = number = int(call.argument("val"))
    for span in _step:
        span.set(step=number)


def resumed(call: Call) -> None:
    """The checkpoint, if any, is loaded: steps count on from here."""
    if call.exception is None:
        call.recorder.step = call.self.global_steps


# --- Readers in the workers that train: their ranks, their model, their share of a batch.


def placed(call: Call) -> None:
    rank = getattr(call.self, "rank", None)
    if call.exception is None and rank is not None:
        call.recorder.describe(rank=int(rank))


def model_built(call: Call) -> None:
    """The whole model on one rank, before it is cut: its parameters, tied ones once. Megatron has
    cut it already, so its number stays unknown; critics are another model."""
    model = call.argument("model")
    parameters = list(model.parameters())
    sharded = any(hasattr(p, "tensor_model_parallel") for p in parameters)
    if not sharded and not hasattr(model, "v_head") and not hasattr(model, "score"):
        call.recorder.describe(parameters=sum(p.numel() for p in parameters))


def is_critic(call: Call) -> bool:
    """Whether a `TrainingWorker` is a critic's: the policy's own calls are seen one floor up."""
    return bool(at(call.self, "config.model_type") == "value_model")


def batch_given(call: Call) -> None:
    """A worker's share of a batch: V1 hands out metadata with tags, which say how long each
    trajectory is (0.9 as what the data store keeps beside its rows), the legacy trainers the rows,
    each as long as it is."""
    batch = call.argument("data")
    tags = getattr(batch, "tags", None) or getattr(batch, "custom_meta", None)
    if call.span is None or batch is None:
        return
    if tags:
        real = [tag for tag in tags if not tag.get("is_padding", False)]
        call.span.set(items=len(real))
        if all("seq_len" in tag for tag in real):
            call.span.set(tokens=sum(tag["seq_len"] for tag in real))
        return
    call.span.set(items=len(batch))
    ids: Any = batch.get("input_ids") if hasattr(batch, "get") else None
    if getattr(ids, "is_nested", False):
        call.span.set(tokens=ids.values().shape[0])


# --- What verl's configuration says of the objective, and of how stale a sample may be.
#
# verl's default recomputes the log-probs of a batch before it trains: its clip then bounds the
# learner's own drift and knows nothing of the lag. `algorithm.rollout_correction` weighs samples
# by the ratio to what sampled them, for which it needs the sampler's log-probs, or, in bypass
# mode, takes those for the old policy's.


def configured(call: Call) -> None:
    """A trainer is about to load its checkpoint, if any: all of its configuration is there."""
    call.recorder.describe(**stated(call.self))


def tracked(call: Call) -> None:
    """A trainer begins to log, and hands its whole configuration over: the only time for 0.8's
    `main_ppo_sync`, which no hook reaches (`controller`). Other trainings have no policy in it."""
    config = call.argument("config")
    if at(config, "actor_rollout_ref.actor") is not None:
        call.recorder.describe(**_of_config(config))


def stated(trainer: Any) -> dict[str, Any]:
    """The facts that `trainer`'s configuration tells; what it does not tell is left out."""
    return _of_config(trainer.config) | not_none(drops_stale=_drops_stale(trainer, trainer.config))


def _of_config(config: Any) -> dict[str, Any]:
    updates = _updates_per_version(config)
    return not_none(objective=_objective(config), updates_per_version=updates)


def _objective(config: Any) -> str:
    loss = at(config, "actor_rollout_ref.actor.policy_loss.loss_mode") or "vanilla"
    plain = "ppo" if loss == "vanilla" else str(loss)
    correction = at(config, "algorithm.rollout_correction")
    weighs = bool(at(correction, "rollout_is"))
    if at(correction, "bypass_mode"):
        reinforces = at(correction, "loss_type") == "reinforce"  # before 0.7 a flag of its own
        reinforces = reinforces or bool(at(correction, "use_policy_gradient"))
        return ("tis" if weighs else "reinforce") if reinforces else "ppo"
    known = bool(at(config, "actor_rollout_ref.rollout.calculate_log_probs"))
    return "decoupled" if weighs and known else plain


def _updates_per_version(config: Any) -> int | None:
    """Optimizer updates of the policy between two weight updates, of batches that are full."""
    actor = at(config, "actor_rollout_ref.actor")
    epochs, mini_batch = at(actor, "ppo_epochs"), at(actor, "ppo_mini_batch_size")
    fully_async = at(config, "async_training")
    if fully_async is not None:  # its batches are counted in mini-batches
        batches = at(fully_async, "require_batches")
        times = at(fully_async, "trigger_parameter_sync_step")
    else:
        batch, times = at(config, "data.train_batch_size"), 1
        batches = -(-batch // mini_batch) if are_counts(batch, mini_batch) else None
    return int(epochs * batches * times) if are_counts(epochs, batches, times) else None


def _drops_stale(trainer: Any, config: Any) -> bool | None:
    """V1's replay buffer has a limit, and drops what is beyond it or waits before it is."""
    sampler = at(config, "trainer.v1.sampler")
    is_v1 = hasattr(trainer, "parameter_sync_step")
    if sampler is None or not is_v1 or at(sampler, "custom_sampler.path"):
        return None
    limit = at(sampler, "max_off_policy_threshold")
    return limit is not None and at(sampler, "max_off_policy_strategy") == "drop"
