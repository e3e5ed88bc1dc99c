"""Whether the tokens of samples that the trainer generates itself are those that were sampled.

Without tools and without a function of the user's they plainly are. Before 1.0 a turn's text is
tokenized anew once tools have answered; up to then and shortly after, what tools say counts as
sampled where the whole gets longer than the engine takes; a function of the user's may give
anything.
"""

from __future__ import annotations

from typing import Any

from rltrace.adapters.sampled import Sampled, runs
from rltrace.hooks.hook import Call


class _Batch:
    """The batch that is being generated."""

    sampled: Sampled | None = None
    """What engines gave; None where nobody need look."""
    own = False


def own_function(trainer: Any) -> bool:
    """Whether a function of the user's generates in place of TRL."""
    return getattr(trainer, "rollout_func", None) is not None


def batch_begins(trainer: Any) -> None:
    _Batch.own = own_function(trainer)
    looked_at = trainer.model.training and (_Batch.own or getattr(trainer, "tools", None))
    _Batch.sampled = Sampled() if looked_at else None


def turn_given(call: Call) -> None:
    """A turn has come back: `(prompts, samples, ...)` before 1.0, `(samples, log-probs)` since."""
    if _Batch.sampled is not None and not _Batch.own and call.exception is None:
        result = call.result
        _Batch.sampled.add(*(result[1] if len(result) > 2 else result[0]))


def answered(call: Call) -> None:
    """TRL's client, or vLLM in this process, has answered a function of the user's."""
    if _Batch.sampled is None or not _Batch.own or call.exception is not None:
        return
    result = call.result
    if isinstance(result, dict):
        _Batch.sampled.add(*result["completion_ids"])
    else:
        _Batch.sampled.add(*(one.token_ids for each in result for one in each.outputs))


def columns(ids: list[int], mask: list[int] | None) -> dict[str, int]:
    """What is known of a sample: nothing where a function of the user's has it from an engine that
    nobody watches."""
    sampled = _Batch.sampled
    if sampled is None:
        return {"token_ids": 1}
    return sampled.column([ids] if mask is None else runs(ids, mask))


def log_probs(rest: list[Any]) -> int:
    """Whether log-probs came with the samples, told from what a batch gives behind prompts and
    samples: GRPO gives a list or None, before 1.9 behind a number of tokens; RLOO gives none."""
    found = (each for each in rest[2:4] if each is None or isinstance(each, list))
    return int(next(found, None) is not None)
