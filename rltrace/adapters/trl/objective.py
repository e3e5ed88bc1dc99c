"""What a trainer's arguments say of its objective, its placement and how old a sample may be.

GRPO's and RLOO's ratio is to the policy that generated, so its clip knows of the lag. With vLLM the
loss is weighed by the ratio of what the trainer's own log-probs are to what vLLM sampled from.
"""

from __future__ import annotations

from typing import Any

from rltrace.trace.redacted import REDACTED, redacted

_PLAIN = ("grpo", "dapo", "dr_grpo", "bnpo", "luspo")
"""Losses that are GRPO's clipped ratio, normalised in different ways."""


_SECRETS = ("token", "password", "secret", "secret_key", "access_key", "api_key")
"""How the names of arguments end that let somebody in; a subclass may have any of them."""


def stated(trainer: Any) -> dict[str, Any]:
    """The facts that the arguments tell; what they do not tell is left out."""
    args = trainer.args
    facts: dict[str, Any] = {"settings": _settings(args)}
    if hasattr(trainer, "model_version"):
        facts |= {"placement": "async", "drops_stale": True}
        updates = getattr(args, "weight_sync_steps", None)
    elif hasattr(args, "use_vllm"):
        apart = args.use_vllm and getattr(args, "vllm_mode", "") == "server"
        facts |= {"placement": "disaggregated" if apart else "colocated", "drops_stale": False}
        updates = 1  # a version is an optimizer update
    else:
        return facts
    if isinstance(updates, int):
        facts["updates_per_version"] = updates
    return {**facts, "objective": _objective(trainer, args)}


def _objective(trainer: Any, args: Any) -> str:
    kind = next((c.__name__ for c in type(trainer).__mro__ if c.__name__ in _OF_CLASS), "")
    if kind:
        return _OF_CLASS[kind]
    loss = str(getattr(args, "loss_type", None) or "grpo")
    weighs = args.use_vllm and getattr(args, "vllm_importance_sampling_correction", False)
    if loss not in _PLAIN:
        return loss
    return "decoupled" if weighs else "ppo"


_OF_CLASS = {
    "AsyncGRPOTrainer": "ppo",
    "AsyncDistillationTrainer": "distillation",
    "RLOOTrainer": "ppo",
    "OnlineDPOTrainer": "online dpo",
}


def _settings(args: Any) -> dict[str, Any]:
    """The arguments that are plain values, as the command line takes them. What lets somebody in
    is nobody's business."""
    return {
        f"--{name}": value
        for name, value in vars(args).items()
        if not name.startswith("_")
        and not name.endswith(_SECRETS)
        and isinstance(value, bool | int | float | str)
        and REDACTED not in redacted([f"{name}={value}"])[0]
    }
