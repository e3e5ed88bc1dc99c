"""Readers in the training loop, which is that of transformers.

No function of it is one step: it takes the batch of an update, goes through its micro-batches,
steps the optimizer, logs. So a step begins where the loop asks for a batch, and ends where it asks
for the next. One process keeps the time of a job with several ranks: the first.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

from rltrace.adapters.table.logged import record_figures
from rltrace.adapters.trl import objective
from rltrace.adapters.trl.samples import Sample, used
from rltrace.hooks import span_api
from rltrace.hooks.hook import Call
from rltrace.trace.run_dir import STEP_FAILED


class _Loop:
    """The loop of this process."""

    running = False
    trained = False  # in the open step
    last_ns = -1  # when the open step last did something
    micro: list[Sample] | None = None  # the micro-batch that is trained on; None: not known


loop = _Loop()


def fit_begins(call: Call) -> None:
    """A trainer begins; it knows its rank."""
    trainer, recorder = call.self, call.recorder
    loop.running, loop.trained, loop.micro = True, False, None
    accelerator = trainer.accelerator
    recorder.describe(role="learner", rank=int(accelerator.process_index))
    recorder.describe(**objective.stated(trainer))
    if accelerator.is_main_process:
        recorder.describe(parameters=_parameters(trainer.model))


def _parameters(model: Any) -> int:
    """All of a model's parameters, tied ones once; under ZeRO-3 a rank holds a part of each."""
    return sum(int(getattr(p, "ds_numel", None) or p.numel()) for p in model.parameters())


def fit_ends(call: Call) -> None:
    """The loop has ended. A step that found no batch was none; one that an exception cut short
    stays open."""
    recorder = call.recorder
    step, recorder.open_step = recorder.open_step, None
    loop.running = False
    number, recorder.step = recorder.step, -1
    if step is None:
        return
    if call.exception is not None:
        recorder.cut_short(STEP_FAILED, number, call.exception)
    elif loop.trained:
        step.set(end_ns=loop.last_ns)
    else:
        step.discard()


def batch_wanted(call: Call) -> str:
    """The loop wants a batch: with it the next step begins, unless the last one got none. An
    asynchronous trainer waits here for samples."""
    trainer, recorder = call.self, call.recorder
    if loop.running:
        number = int(trainer.state.global_step) + 1
        if not hasattr(trainer, "model_version"):
            recorder.version = number - 1
        if not trainer.accelerator.is_main_process:
            recorder.step = number
        elif recorder.open_step is None or loop.trained:
            _next_step(recorder, number)
        loop.trained = False
    return "wait" if hasattr(trainer, "model_version") else "data"


def _next_step(recorder: Any, number: int) -> None:
    now_ns = monotonic_ns()
    if recorder.open_step is not None:
        recorder.open_step.set(end_ns=now_ns)
        recorder.open_step = None
    span_api.step(number).set(start_ns=now_ns)


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
    used(call, samples, call.recorder.step, call.recorder.version)


def step_did_more(call: Call) -> None:
    """The open step lasts at least until here."""
    loop.last_ns = call.end_ns


def logged(call: Call) -> None:
    """TRL's own figures, under its names; every rank has them, the first one's count."""
    if call.self.accelerator.is_main_process:
        record_figures(call, call.argument("logs") or {})


def unless_evaluating(stage: str) -> Any:
    """The stage of a trainer's method, `eval` while the model is evaluated."""

    def of(call: Call) -> str:
        return stage if call.self.model.training else "eval"

    return of
