"""What OpenRLHF's flags say of the objective.

OpenRLHF recomputes the log-probs of a batch before it trains, so its clip bounds the learner's own
drift and knows nothing of the lag; its correction weighs that loss by the ratio to what vLLM
sampled from, within limits. Nothing is dropped for its age.
"""

from __future__ import annotations

from typing import Any

from rltrace.adapters.table.stated import are_counts, at

_ENABLED = ("is_correction_enable", "enable_vllm_is_correction")  # 0.10.2; before it
_FACTORS = (
    ("rollout.batch_size", "rollout_batch_size"),
    ("rollout.n_samples_per_prompt", "n_samples_per_prompt"),
    ("train.max_epochs", "max_epochs"),
    ("train.batch_size", "train_batch_size"),
)


def stated(args: Any) -> dict[str, Any]:
    """The facts that the flags tell; what they do not tell is left out."""
    facts = {"objective": _objective(args), "drops_stale": False}
    updates = _updates_per_version(args)
    return facts if updates is None else {**facts, "updates_per_version": updates}


def _objective(args: Any) -> str:
    loss = at(args, "actor.policy_loss_type", "policy_loss_type") or "ppo"
    flags = at(args, "algo.advantage") or args
    level = at(flags, "is_correction_level")
    corrects = level not in (None, "off") or any(at(flags, name) for name in _ENABLED)
    return "decoupled" if corrects and loss == "ppo" else str(loss)


def _updates_per_version(args: Any) -> int | None:
    """Optimizer updates of the policy in a step, which one broadcast follows; of a full batch."""
    known = prompts, samples, epochs, batch = [at(args, *names) for names in _FACTORS]
    return int(prompts * samples // batch * epochs) or None if are_counts(*known) else None
