"""A sample as the trainer's process knows it, from its generation to its last use."""

from __future__ import annotations

import sys
from typing import Any

from rltrace.adapters.trl.loop import loop
from rltrace.hooks.hook import Call
from rltrace.hooks.identity import identify
from rltrace.trace.vocabulary import Fate


class Sample:
    """A trajectory that may be trained on: its id, and its tokens (-1: unknown). `masked` says that
    TRL keeps it out of the loss because it was cut off."""

    __slots__ = ("id", "masked", "prompt_tokens", "tokens")

    def __init__(self, trajectory: int, prompt_tokens: int = -1, tokens: int = -1) -> None:
        self.id = trajectory
        self.prompt_tokens = prompt_tokens
        self.tokens = tokens
        self.masked = False


def begin(call: Call, trajectory: str, group: str, prompt: object) -> tuple[Sample, Any]:
    """A sample that a trainer begins to generate, and its row."""
    sample = Sample(identify(trajectory))
    return sample, call.row(
        "trajectories",
        trajectory=sample.id,
        group=identify(group),
        prompt=identify(str(prompt)),
        first_version=int(call.self.state.global_step),
    )


def used(call: Call, sample: Sample, fate: Fate) -> None:
    """A sample has been trained on, or dropped."""
    recorder = call.recorder
    known = {"trajectory": sample.id, "fate": fate, "tokens": sample.tokens}
    call.row("uses", step=recorder.step, version=recorder.version, **known)


def ends_of_text(owner: Any) -> tuple[set[int], int | None]:
    """The tokens after which TRL takes a sample for complete, of which 1.10 knows several, and the
    one that a shorter sample is filled up with."""
    names = ("_tokenizer", "processing_class", "tokenizer")
    found = (getattr(owner, name, None) for name in names)
    tokenizer: Any = next((one for one in found if one is not None), None)
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor
    ends = getattr(owner, "eos_token_ids", None) or [tokenizer.eos_token_id]
    return set(ends), getattr(tokenizer, "pad_token_id", None)


def set_row(row: Any, **columns: int) -> None:
    """Completes a sample's row, where there is one."""
    if row is not None:
        row.set(**columns)


# --- Which samples a micro-batch has, and a forward pass.
#
# TRL generates for several micro-batches at once, shuffles, cuts the result into as many parts,
# and takes the same parts again for each of its iterations. Its batches are tensors, in which
# nothing may travel: what the shuffle did is found out by drawing the same permutation again, from
# a generator of our own in the state that the process's was in, so that the job draws what it
# would have drawn.


class _Buffer:
    """What was generated last: in the order of the batch, once it has been shuffled."""

    made: list[Sample] | None = None
    shuffled: list[Sample] | None = None


buffer = _Buffer()


def shuffling(call: Call) -> None:
    torch = call.function.__globals__["torch"]
    if buffer.made is not None and str(torch.get_default_device()) == "cpu":
        call.state = torch.get_rng_state()


def shuffled(call: Call) -> None:
    """It has been. A batch that is none of this trainer's samples stays unknown."""
    made, buffer.made, buffer.shuffled = buffer.made, None, None
    if call.exception is not None or call.state is None or made is None:
        return
    batch: dict[str, Any] = call.argument("seq_dict")
    if len(next(value for value in batch.values() if value is not None)) != len(made):
        return
    torch = call.function.__globals__["torch"]
    generator = torch.Generator()
    generator.set_state(call.state)
    order = torch.randperm(len(made), generator=generator).tolist()
    buffer.shuffled = [made[place] for place in order]


def micro_given(call: Call) -> None:
    """A micro-batch is what comes next: a part of what was generated last."""
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
