"""Readers in the training loop, which is that of transformers.

No function of it is one step: it takes the batch of an update, goes through its micro-batches,
steps the optimizer, logs. So a step begins where the loop asks for a batch, and ends where it asks
for the next. One process keeps the time of a job with several ranks: the first.
"""

from __future__ import annotations

from rltrace.adapters.table.logged import record_figures
from rltrace.adapters.table.steps import Loop
from rltrace.adapters.table.weights import parameter_count
from rltrace.adapters.trl import objective
from rltrace.adapters.trl.samples import Sample, used
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import Fate


class _Loop(Loop):
    """The loop of this process."""

    micro: list[Sample] | None = None  # the micro-batch that is trained on; None: not known


loop = _Loop()


def fit_begins(call: Call) -> None:
    """A trainer begins; it knows its rank."""
    trainer, recorder = call.self, call.recorder
    loop.begins()
    loop.micro = None
    accelerator = trainer.accelerator
    recorder.describe(role="learner", rank=int(accelerator.process_index))
    recorder.describe(**objective.stated(trainer))
    if accelerator.is_main_process:
        recorder.describe(parameters=parameter_count(trainer.model))


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
    for sample in samples:
        used(call, sample, Fate.TRUNCATED if sample.masked else Fate.TRAINED)


def logged(call: Call) -> None:
    """TRL's own figures, under its names; every rank has them, the first one's count."""
    if call.self.accelerator.is_main_process:
        record_figures(call, call.argument("logs") or {})


def trains(call: Call) -> bool:
    """Whether a trainer's method is called for training, and not to evaluate the model."""
    return bool(call.self.model.training)
