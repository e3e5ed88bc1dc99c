"""What verl's configuration says of the objective and of staleness.

By default log-probs are recomputed before a batch trains: the clip bounds the learner's own drift
and knows nothing of the lag. `algorithm.rollout_correction` weighs samples by the ratio to the
sampler's log-probs, or, in bypass mode, takes those for the old policy's.
"""

from __future__ import annotations

from typing import Any

from rltrace.adapters.table.stated import are_counts, at, not_none, options
from rltrace.hooks.hook import Call


def configured(call: Call) -> None:
    """A trainer is about to load its checkpoint, if any: all of its configuration is there."""
    call.recorder.describe(**stated(call.self))


def tracked(call: Call) -> None:
    """A trainer hands its whole configuration to a logger: the only time for 0.8's `main_ppo_sync`
    (`controller`). Other trainings have no policy in it."""
    config = call.argument("config")
    if at(config, "actor_rollout_ref.actor") is not None:
        call.recorder.describe(**_of_config(config))


def stated(trainer: Any) -> dict[str, Any]:
    drops = not_none(drops_stale=_drops_stale(trainer, trainer.config))
    return _of_config(trainer.config) | drops | {"ratios_before_updates": True}


def _of_config(config: Any) -> dict[str, Any]:
    estimator = at(config, "algorithm.adv_estimator")
    return not_none(
        settings=options(config) or None,
        objective=_objective(config),
        advantage=getattr(estimator, "value", estimator),  # it may be an enum's
        updates_per_version=_updates_per_version(config),
    )


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
