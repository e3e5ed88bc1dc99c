"""Online DPO: two samples of a prompt in one training step.

A batch of n prompts is 2 n samples, all first ones before all second ones. How long they are TRL
knows on the host where it hands them to reward functions; with a judge (before 1.6) it does not.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from rltrace.adapters.table.samples import verdict
from rltrace.adapters.trl.loop import TrlSample, begin, ends_of_text, loop, set_row
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import Finish

_next = count().__next__


class _Pairs:
    made: list[tuple[TrlSample, Any]] = []  # noqa: RUF012  # in the running step, with their rows


def begins(call: Call) -> None:
    batch = f"{call.recorder.who}/{_next()}"  # a prompt's samples are of one rank
    prompts = call.argument("prompts")
    _Pairs.made = [
        begin(call, f"{batch}/{half + place}", f"{batch}/group/{place}", prompt)
        for half in (0, len(prompts))
        for place, prompt in enumerate(prompts)
    ]


def ends(call: Call) -> None:
    """`(prompt ids, prompt mask, ...)`: tensors, read where they are on the host."""
    if call.exception is not None:
        _set_all(end_ns=call.end_ns, finish=Finish.ERROR)
        return
    _set_all(end_ns=call.end_ns, turns=1, last_version=int(call.self.state.global_step))
    mask = call.result[1]
    if mask.device.type == "cpu":
        for (sample, row), tokens in zip(_Pairs.made, mask.sum(1).tolist(), strict=True):
            sample.prompt_tokens = int(tokens)
            set_row(row, prompt_tokens=sample.prompt_tokens)
        if call.recorder.captures_tokens:
            ids = call.result[0]  # filled up to the longest where the mask is False
            for place, (_, row) in enumerate(_Pairs.made):
                call.recorder.capture(row, ids[place][mask[place].bool()])
    loop.micro = [sample for sample, _ in _Pairs.made]


def _set_all(**columns: int) -> None:
    for _, row in _Pairs.made:
        set_row(row, **columns)


def judged(call: Call) -> None:
    """One number for each sample, the functions' weighted sum. TRL keeps none on the host, so
    reading them waits for what the functions still do on a device."""
    trainer, lists = call.self, call.argument("completion_ids_list")
    if lists is None or len(lists) != len(_Pairs.made):
        return
    ends, pad = ends_of_text(trainer)
    values = [None] * len(lists) if call.exception is not None else call.result.tolist()
    functions, times_ns = trainer.reward_funcs, (call.start_ns, call.end_ns)
    name = f"sum of {len(functions)} functions"
    if len(functions) == 1:
        name = str(getattr(functions[0], "__name__", type(functions[0]).__name__))
    for place, (sample, row) in enumerate(_Pairs.made):
        sample.tokens, complete = _length(lists[place], ends, pad)
        finish = Finish.STOP if complete else Finish.LENGTH
        set_row(row, response_tokens=sample.tokens, finish=finish)
        if call.recorder.captures_tokens:
            call.recorder.capture(row, response=lists[place][: sample.tokens])
        verdict(call, sample.id, name, values[place], times_ns)


def _length(ids: list[int], ends: set[int], pad: int | None) -> tuple[int, bool]:
    """Tokens of a sample without what fills it up (maybe its end), and whether it ended."""
    for place, token in enumerate(ids):
        if token in ends:
            return place + 1, True
    tokens = len(ids)
    while tokens and ids[tokens - 1] == pad:
        tokens -= 1
    return tokens, False
