"""What verl's configuration says of the objective, and of how stale a sample may be.

verl's default recomputes the log-probs of a batch before it trains: its clip then bounds the
learner's own drift and knows nothing of the lag. `algorithm.rollout_correction` weighs samples by
the ratio to what sampled them, for which it needs the sampler's log-probs, or, in bypass mode,
takes those for the old policy's.
"""

from __future__ import annotations

from typing import Any

from rltrace.hooks.hook import Call


def configured(call: Call) -> None:
    """A trainer is about to load its checkpoint, if any: all of its configuration is there."""
    call.recorder.describe(**stated(call.self))


def tracked(call: Call) -> None:
    """A trainer begins to log, and hands its whole configuration over: the only time for 0.8's
    `main_ppo_sync`, which no hook reaches (`forerunner`). Other trainings have no policy in it."""
    config = call.argument("config")
    if _at(config, "actor_rollout_ref.actor") is not None:
        call.recorder.describe(**_of_config(config))


def stated(trainer: Any) -> dict[str, Any]:
    """The facts that `trainer`'s configuration tells; what it does not tell is left out."""
    facts = _of_config(trainer.config)
    drops = _drops_stale(trainer, trainer.config)
    if drops is not None:
        facts["drops_stale"] = drops
    return facts


def _of_config(config: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"objective": _objective(config)}
    updates = _updates_per_version(config)
    if updates is not None:
        facts["updates_per_version"] = updates
    return facts


def _objective(config: Any) -> str:
    loss = _at(config, "actor_rollout_ref.actor.policy_loss.loss_mode") or "vanilla"
    plain = "ppo" if loss == "vanilla" else str(loss)
    correction = _at(config, "algorithm.rollout_correction")
    weighs = bool(_at(correction, "rollout_is"))
    if _at(correction, "bypass_mode"):
        reinforces = _at(correction, "loss_type") == "reinforce"  # before 0.7 a flag of its own
        reinforces = reinforces or bool(_at(correction, "use_policy_gradient"))
        return ("tis" if weighs else "reinforce") if reinforces else "ppo"
    known = bool(_at(config, "actor_rollout_ref.rollout.calculate_log_probs"))
    return "decoupled" if weighs and known else plain


def _updates_per_version(config: Any) -> int | None:
    """Optimizer updates of the policy between two weight updates, of batches that are full."""
    actor = _at(config, "actor_rollout_ref.actor")
    epochs, mini_batch = _at(actor, "ppo_epochs"), _at(actor, "ppo_mini_batch_size")
    fully_async = _at(config, "async_training")
    if fully_async is not None:  # its batches are counted in mini-batches
        parts = (
            epochs,
            _at(fully_async, "require_batches"),
            _at(fully_async, "trigger_parameter_sync_step"),
        )
    else:
        batch = _at(config, "data.train_batch_size")
        parts = (epochs, -(-batch // mini_batch) if _whole(batch, mini_batch) else None, 1)
    if not _whole(*parts):
        return None
    return int(parts[0] * parts[1] * parts[2])


def _drops_stale(trainer: Any, config: Any) -> bool | None:
    """V1's replay buffer has a limit, and drops what is beyond it or waits before it is."""
    sampler = _at(config, "trainer.v1.sampler")
    is_v1 = hasattr(trainer, "parameter_sync_step")
    if sampler is None or not is_v1 or _at(sampler, "custom_sampler.path"):
        return None
    limit = _at(sampler, "max_off_policy_threshold")
    return limit is not None and _at(sampler, "max_off_policy_strategy") == "drop"


def _whole(*numbers: Any) -> bool:
    return all(isinstance(number, int) and number > 0 for number in numbers)


def _at(config: Any, path: str) -> Any:
    """The value at a dotted path of a configuration; None where it has none."""
    for name in path.split("."):
        config = config.get(name) if isinstance(config, dict) else getattr(config, name, None)
    return config
