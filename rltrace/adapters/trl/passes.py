"""Forward passes over samples: reference, recomputed log-probs, and what belongs to training."""

from __future__ import annotations

import sys

from rltrace.adapters.trl.buffer import buffer
from rltrace.hooks.hook import Call


class _Adapter:
    """Whether the policy is its own reference just now: its adapter is off, or another one on."""

    is_reference = False


def adapter_changed(call: Call) -> None:
    del call
    _Adapter.is_reference = True


def adapter_back(call: Call) -> None:
    del call
    _Adapter.is_reference = False


def without_gradients(call: Call) -> bool:
    del call
    return not sys.modules["torch"].is_grad_enabled()


def log_probs(call: Call) -> str | None:
    """TRL has one function for all log-probs. With gradients it is the forward of training, which
    has a span already."""
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
    """Rows and tokens of a pass over all that was generated last."""
    samples = buffer.made
    if call.span is None:
        return
    rows = int(call.argument("input_ids").shape[0])
    call.span.set(items=rows)
    if samples is not None and len(samples) == rows:
        call.span.set(tokens=sum(s.prompt_tokens + s.tokens for s in samples))
