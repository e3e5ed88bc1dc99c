"""Which samples a micro-batch, and a forward pass, has.

TRL generates for several micro-batches at once, shuffles, cuts the result into as many parts, and
takes these again in each iteration. Its batches are tensors, in which nothing may travel: the same
permutation is drawn again, from a generator of our own in the state that the process's was in.
"""

from __future__ import annotations

import sys
from typing import Any

from rltrace.adapters.table.samples import ratios
from rltrace.adapters.trl.loop import TrlSample, loop
from rltrace.hooks.hook import Call


class _Buffer:
    """What was generated last: in the order of the batch, once it has been shuffled."""

    made: list[TrlSample] | None = None
    shuffled: list[TrlSample] | None = None


buffer = _Buffer()


def shuffling(call: Call) -> None:
    torch = call.function.__globals__["torch"]
    if buffer.made is not None and str(torch.get_default_device()) == "cpu":
        call.state = torch.get_rng_state()


def shuffled(call: Call) -> None:
    """A batch that is none of this trainer's samples stays unknown."""
    made, buffer.made, buffer.shuffled = buffer.made, None, None
    if call.exception is not None or call.state is None or made is None:
        return
    batch: dict[str, Any] = call.argument("seq_dict")
    if len(next(value for value in batch.values() if value is not None)) != len(made):
        return
    if batch.get("tool_mask") is None:  # else there are tokens that no engine sampled
        names = ("old_per_token_logps", "sampling_per_token_logps", "completion_mask")
        known = ratios(*(x if x is None else x.cpu() for x in map(batch.get, names)))
        for sample, own in zip(made, zip(*known, strict=True), strict=False):
            sample.ratios = own
    torch = call.function.__globals__["torch"]
    generator = torch.Generator()
    generator.set_state(call.state)
    order = torch.randperm(len(made), generator=generator).tolist()
    buffer.shuffled = [made[place] for place in order]


def micro_given(call: Call) -> None:
    """It is a part of what was generated last."""
    trainer = call.self
    if not trainer.model.training or call.exception is not None:
        return
    samples, parts = buffer.shuffled, int(trainer.args.steps_per_generation)
    loop.micro = None
    if samples is not None and len(samples) % parts == 0:
        size, part = len(samples) // parts, trainer._step % parts
        loop.micro = samples[part * size : (part + 1) * size]


# --- forward passes: reference, recomputed log-probs, and what belongs to training


class _Adapter:
    is_reference = False  # the policy is its own: its adapter is off, or another one on


def adapter_changed(_call: Call) -> None:
    _Adapter.is_reference = True


def adapter_back(_call: Call) -> None:
    _Adapter.is_reference = False


def without_gradients(_call: Call) -> bool:
    return not sys.modules["torch"].is_grad_enabled()


def log_probs(call: Call) -> str | None:
    """With gradients it is the forward of training, which has a span already."""
    trainer = call.self
    if not without_gradients(call):
        return None
    if not trainer.model.training:
        return "eval"
    model, reference = call.argument("model"), getattr(trainer, "ref_model", None)
    if _Adapter.is_reference or (reference is not None and model is reference):
        return "reference"
    return "logprob"


def batch_seen(call: Call) -> None:
    samples = buffer.made
    if call.span is None:
        return
    rows = int(call.argument("input_ids").shape[0])
    call.span.set(items=rows)
    if samples is not None and len(samples) == rows:
        call.span.set(tokens=sum(s.prompt_tokens + s.tokens for s in samples))
