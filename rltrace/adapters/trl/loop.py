"""The training loop of transformers: steps, micro-batches, samples, the objective.

No function of it is one step, so a step lasts from where the loop asks for a batch to where it asks
for the next. Of several ranks the first keeps the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rltrace.adapters.table.logged import record_figures
from rltrace.adapters.table.samples import NO_RATIOS, uses
from rltrace.adapters.table.stated import not_none
from rltrace.adapters.table.steps import Loop
from rltrace.adapters.table.weights import parameter_count
from rltrace.hooks.hook import Call
from rltrace.hooks.sample_api import identify
from rltrace.trace.vocabulary import Fate


class TrlSample:
    """A trajectory that may be trained on; -1 tokens are unknown. `masked`: TRL keeps it out of the
    loss, as it was cut off."""

    def __init__(self, trajectory: int, prompt_tokens: int = -1, tokens: int = -1) -> None:
        self.id = trajectory
        self.prompt_tokens = prompt_tokens
        self.tokens = tokens
        self.masked = False
        self.ratios: tuple[float, ...] = NO_RATIOS  # when it was generated: its first update's


def begin(call: Call, trajectory: str, group: str, prompt: object) -> tuple[TrlSample, Any]:
    """A sample that the trainer generates itself, and its row."""
    sample = TrlSample(identify(trajectory))
    known = {"group": identify(group), "prompt": identify(str(prompt))}
    version = int(call.self.state.global_step)
    return sample, call.row("trajectories", trajectory=sample.id, first_version=version, **known)


def ends_of_text(owner: Any) -> tuple[set[int], int | None]:
    """The tokens that end a sample (1.10 knows several), and the one that fills it up."""
    names = ("_tokenizer", "processing_class", "tokenizer")
    found = (getattr(owner, name, None) for name in names)
    tokenizer: Any = next((one for one in found if one is not None), None)
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor
    ends = getattr(owner, "eos_token_ids", None) or [tokenizer.eos_token_id]
    return set(ends), getattr(tokenizer, "pad_token_id", None)


def set_row(row: Any, **columns: int) -> None:
    if row is not None:
        row.set(**columns)


class _Loop(Loop):
    micro: list[TrlSample] | None = None  # the micro-batch that is trained on; None: not known


loop = _Loop()


def fit_begins(call: Call) -> None:
    trainer, recorder = call.self, call.recorder
    loop.begins()
    loop.micro = None
    accelerator = trainer.accelerator
    recorder.describe(role="learner", rank=int(accelerator.process_index))
    facts = stated(trainer)
    if accelerator.is_main_process:
        facts["parameters"] = parameter_count(trainer.model)
    recorder.training_begins(**facts)


def batch_wanted(call: Call) -> str:
    """The loop wants a batch. An asynchronous trainer waits here for samples."""
    trainer, recorder = call.self, call.recorder
    if loop.running:
        number = int(trainer.state.global_step) + 1
        if not hasattr(trainer, "model_version"):
            recorder.version = number - 1
        if trainer.accelerator.is_main_process:
            loop.wants_batch(recorder, number)
        else:
            recorder.step = number
    return "wait" if hasattr(trainer, "model_version") else "data"


def micro_ends(call: Call) -> None:
    """Forward and backward of a micro-batch are done; the optimizer's step comes after the last."""
    loop.last_ns = call.end_ns
    samples, loop.micro = loop.micro, None
    if call.exception is not None:
        return
    loop.trained = True
    if samples is None:
        return
    call.span.set(items=len(samples))
    if all(sample.tokens >= 0 <= sample.prompt_tokens for sample in samples):
        call.span.set(tokens=sum(s.prompt_tokens + s.tokens for s in samples))
    fates = [Fate.TRUNCATED if sample.masked else Fate.TRAINED for sample in samples]
    ids, tokens = [sample.id for sample in samples], [sample.tokens for sample in samples]
    uses(call, fates, ids, tokens, zip(*(sample.ratios for sample in samples), strict=True))
    for sample in samples:
        sample.ratios = NO_RATIOS


def logged(call: Call) -> None:
    """TRL's own figures; every rank has them, the first one's count."""
    if call.self.accelerator.is_main_process:
        record_figures(call, call.argument("logs") or {})


def trains(call: Call) -> bool:
    return bool(call.self.model.training)


# GRPO's and RLOO's ratio is to the policy that generated, so its clip knows of the lag. With vLLM
# the loss is weighed by the ratio of the trainer's own log-probs to those that vLLM sampled from.
_PLAIN = ("grpo", "dapo", "dr_grpo", "bnpo", "luspo")
"""Losses that are GRPO's clipped ratio, normalised in different ways."""

_PAIRS = "online dpo"
_OF_CLASS = {
    "AsyncGRPOTrainer": "ppo",
    "AsyncDistillationTrainer": "distillation",
    "RLOOTrainer": "ppo",
    "OnlineDPOTrainer": _PAIRS,
}
_NO_ROLLOUT = {
    "SFTTrainer": "supervised fine-tuning",
    "RewardTrainer": "training of a reward model",
    "PRMTrainer": "training of a reward model",
    **{f"{name}Trainer": name for name in ("DPO", "KTO", "CPO", "ORPO", "BCO")},
}
"""Trainers that generate nothing, and what they do."""
_SUM = "sum_then_normalize"  # before that there was nothing else


def stated(trainer: Any) -> dict[str, Any]:
    args = trainer.args
    settings = {f"--{name}": value for name, value in vars(args).items() if name[0] != "_"}
    facts: dict[str, Any] = {"settings": settings}
    if hasattr(trainer, "model_version"):
        facts |= {"placement": "async", "drops_stale": True}
        updates = getattr(args, "weight_sync_steps", None)
    elif hasattr(args, "use_vllm"):
        apart = args.use_vllm and getattr(args, "vllm_mode", "") == "server"
        facts |= {"placement": "disaggregated" if apart else "colocated", "drops_stale": False}
        updates = 1  # a version is an optimizer update
    else:
        # What inherits from one of them may generate, as GKD's trainer does from that of SFT.
        mine = (base for base in type(trainer).__mro__ if base.__module__.startswith("trl."))
        return facts | not_none(no_rollout=_NO_ROLLOUT.get(next(mine, object).__name__))
    if isinstance(updates, int):
        facts["updates_per_version"] = updates
    facts["objective"] = _objective(trainer, args)
    if facts["objective"] != _PAIRS:  # what is seen of its functions is their weighted sum
        facts |= reward_weights(trainer)
    return facts


def told_apart(names: Iterable[object]) -> list[str]:
    """The names of functions; of those that share one, the second is `name#2`, and so on."""
    every = list(map(str, names))
    before = [every[:place].count(name) for place, name in enumerate(every)]
    return [f"{name}#{n + 1}" if n else name for name, n in zip(every, before, strict=True)]


def reward_weights(judge: Any) -> dict[str, dict[str, float]]:
    """The weights in the sum of what reward functions say. Rollout processes have none, which is 1,
    and do not tell two functions of a name apart. There is no such sum where the rewards of each
    function are normalised first."""
    how = getattr(judge, "multi_objective_aggregation", _SUM)
    given = list(getattr(judge, "reward_func_names", ()))
    weights = getattr(judge, "reward_weights", None)
    if how != _SUM or not given or (weights is None and len({*given}) < len(given)):
        return {}
    values = [1.0] * len(given) if weights is None else weights.tolist()
    return {"reward_weights": dict(zip(told_apart(given), values, strict=True))}


def _objective(trainer: Any, args: Any) -> str:
    for base in type(trainer).__mro__:
        if base.__name__ in _OF_CLASS:
            return _OF_CLASS[base.__name__]
    loss = str(getattr(args, "loss_type", None) or "grpo")
    weighs = args.use_vllm and getattr(args, "vllm_importance_sampling_correction", False)
    plain = "decoupled" if weighs else "ppo"
    return plain if loss in _PLAIN else loss
