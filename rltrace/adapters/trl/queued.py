"""Samples as an asynchronous trainer takes them out of its queue: dropped for their age, or packed
into micro-batches, of which each has all ranks' samples and the first rank sees all.

The loader fetches a micro-batch ahead, so what is trained on may be a version older than it was
when TRL took it out of the queue and wrote down how stale it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from rltrace.adapters.trl.loop import loop
from rltrace.adapters.trl.rollouts import Ids, lengths
from rltrace.adapters.trl.samples import Sample, used
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import Fate

_MOST = 100_000  # samples that are on their way from the queue into a micro-batch


class _Queue:
    """The queue of this process's trainer, and what has come out of it."""

    buffer: Any = None
    last: tuple[Any, Sample] | None = None  # taken out, and neither given on nor dropped yet
    given: dict[int, tuple[Any, Sample]] = {}  # noqa: RUF012  # by the mapping that they became
    batches: deque[list[Sample]] = deque()  # noqa: RUF012  # not trained on yet, in order


_ids = Ids()


def queue_known(call: Call) -> None:
    """The trainer's side of the queue is there."""
    _Queue.buffer, _Queue.last = call.self.queue, None
    _Queue.given.clear()
    _Queue.batches.clear()


def taken(call: Call) -> None:
    """Something has been taken out of some queue. If one sample follows another without having
    been given on, TRL has dropped it because it is too old."""
    if call.self is not _Queue.buffer or call.exception is not None:
        return
    if _Queue.last is not None:
        used(call, _Queue.last[1], Fate.STALE)
    sample = call.result
    _Queue.last = (sample, Sample(_ids.of(sample), *lengths(sample)))


def given(call: Call) -> None:
    """A sample is given on, as a mapping that has its tokens."""
    last, mapping = _Queue.last, call.result
    if last is not None and mapping["input_ids"] is last[0].input_ids:
        _Queue.given[id(mapping)] = (mapping, last[1])
        _Queue.last = None
        if len(_Queue.given) > _MOST:
            del _Queue.given[next(iter(_Queue.given))]


def collated(call: Call) -> None:
    found = list(_below(call.argument("examples")))
    if call.exception is None:
        _Queue.batches.append(found)


def _below(examples: Any) -> Iterator[Sample]:
    """The samples below lists of mappings, or of rows that have their `samples` (1.16)."""
    for example in examples:
        if not isinstance(example, dict):
            yield from _below(getattr(example, "samples", example))
        elif id(example) in _Queue.given:
            yield _Queue.given.pop(id(example))[1]


def micro_begins(call: Call) -> None:
    """A micro-batch is trained on, in the order in which they were packed."""
    if hasattr(call.self, "model_version"):
        loop.micro = _Queue.batches.popleft() if _Queue.batches else None
