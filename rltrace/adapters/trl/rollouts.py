"""Samples where an asynchronous trainer generates, and in its queue.

That is a process, before 1.6 a thread of the trainer. A conversation is one task of asyncio's, so a
context variable says to which one a turn belongs. Its samples reach the trainer pickled, with no
room for an id: both ends make the same one of what a sample is (`Ids`).
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import count
from typing import Any

from rltrace.adapters.table.samples import cut_short, keep, uses
from rltrace.adapters.token_fidelity import Sampled, runs
from rltrace.adapters.trl.loop import TrlSample, ends_of_text, loop, reward_weights, set_row
from rltrace.adapters.trl.verdicts import write_verdicts
from rltrace.hooks.hook import Call
from rltrace.hooks.sample_api import identify
from rltrace.trace.vocabulary import Fate, Finish, Stage

_next = count().__next__
_MOST = 100_000  # samples that wait to be judged, or whose likes may still come


class Conversation:
    def __init__(self, row: Any) -> None:
        self.row = row
        self.turns = self.env_ns = 0
        self.finish = -1
        self.completion: Any = None
        self.columns: dict[str, int] = {}  # of a row, for one more
        self.sampled = Sampled()


_current: ContextVar[Conversation | None] = ContextVar("rltrace_trl_conversation", default=None)
_waiting: dict[int, Conversation] = {}  # for their verdicts, by their messages


def started(call: Call) -> None:
    if call.exception is None:
        call.recorder.describe(role="rollout", **reward_weights(call.self))


def begins(call: Call) -> None:
    version = call.recorder.version = int(call.self.model_version)
    prompt = call.argument("prompt") or (call.argument("row") or {}).get("prompt")
    columns = {"first_version": version, "prompt": identify(str(prompt))}
    call.state = Conversation(call.row("trajectories", **columns))
    call.state.columns = {**columns, "start_ns": call.start_ns}
    _current.set(call.state)


def asks(call: Call) -> None:
    call.recorder.version = int(call.self.model_version)
    call.span.set(version=call.recorder.version)


def turn_ends(call: Call) -> None:
    """A turn has come back: its tokens, and with their log-probs in GRPO."""
    conversation = _current.get()
    if call.exception is not None:
        return
    ids = call.result[0] if isinstance(call.result, tuple) else call.result
    call.span.set(items=1, tokens=len(ids))
    if conversation is not None:
        conversation.turns += 1
        conversation.sampled.add(ids)
        ends, _ = ends_of_text(call.self)
        if ids and ids[-1] in ends:
            conversation.finish = Finish.STOP
        else:
            conversation.finish = Finish.LENGTH if len(ids) >= call.self.max_tokens else -1


def tools_end(call: Call) -> None:
    conversation = _current.get()
    if conversation is not None:
        conversation.env_ns += call.end_ns - call.start_ns


def ends(call: Call) -> None:
    """A conversation is over: its messages come first in what it gives."""
    conversation = call.state
    _complete(call, conversation)
    if call.exception is None and conversation.row is not None:
        conversation.completion = call.result[0]
        # Nobody will judge the oldest one.
        keep(_waiting, id(conversation.completion), conversation, _MOST)


def ends_judged(call: Call) -> None:
    """A sample for distillation is over, and judged by its teacher."""
    conversation, sample = call.state, call.result
    _complete(call, conversation)
    if sample is not None and conversation.row is not None:
        _is_of(call, conversation.row, sample, conversation.sampled)


def _complete(call: Call, conversation: Conversation) -> None:
    if conversation.row is None:
        return
    columns = {"end_ns": call.end_ns, "env_ns": conversation.env_ns}
    if call.exception is not None:
        columns |= cut_short(call.exception)
    else:
        columns |= {"last_version": int(call.self.model_version), "turns": conversation.turns}
        if conversation.finish >= 0:
            columns["finish"] = conversation.finish
    conversation.row.set(**columns)
    conversation.columns |= columns


class _GroupScoring:
    functions: dict[int, str] = {}  # noqa: RUF012  # reward function -> its name
    times_ns: dict[str, tuple[int, int]] = {}  # noqa: RUF012


def judging(call: Call) -> None:
    worker = call.self
    pairs = zip(worker.reward_funcs, worker.reward_func_names, strict=False)
    _GroupScoring.functions = {id(function): name for function, name in pairs}
    _GroupScoring.times_ns = {}


def function_begins(call: Call) -> None:
    """Something is about to run in a thread; a plain reward function does."""
    name = _GroupScoring.functions.get(id(call.argument("func")))
    if name is not None:
        call.state = (name, call.recorder.begin(call.recorder.name(name), Stage.REWARD))


def function_ends(call: Call) -> None:
    if call.state is not None:
        name, span = call.state
        span.end()
        _GroupScoring.times_ns[name] = (call.start_ns, call.end_ns)


def judged(call: Call) -> None:
    """A conversation whose tokens are not one row is several samples."""
    _GroupScoring.functions = {}
    if call.exception is not None:
        return
    group = identify(f"{call.recorder.who}/group/{_next()}")
    judged, names = list[tuple[int, Any]](), call.self.reward_func_names
    times_ns = dict.fromkeys(names, (call.start_ns, call.end_ns))
    times_ns |= _GroupScoring.times_ns
    told: set[int] = set()
    for sample in call.result:
        place = id(sample.completion)
        conversation = _waiting.get(place)
        if conversation is None:
            continue
        row = conversation.row
        if place in told:
            row = call.recorder.append("trajectories", **conversation.columns)
        trajectory = _is_of(call, row, sample, conversation.sampled, group=group, logprobs=1)
        told.add(place)
        judged.append((trajectory, sample.metrics))
    values = {n: [of.get(f"rewards/{n}", math.nan) for _, of in judged] for n in names}
    write_verdicts(call, [trajectory for trajectory, _ in judged], values, times_ns)
    for place in told:
        del _waiting[place]


def _is_of(call: Call, row: Any, sample: Any, sampled: Sampled, **more: int) -> int:
    """Says of a row which sample it is of; its id. Text is tokenized anew each turn (since 1.9),
    and what then differs is masked."""
    trajectory, ids = _ids.of(sample), sample.input_ids
    prompt, response = lengths(sample)
    more |= sampled.column(runs(ids, sample.completion_mask))
    set_row(row, trajectory=trajectory, prompt_tokens=prompt, response_tokens=response, **more)
    if call.recorder.captures_tokens:
        call.recorder.capture(row, ids[:prompt], ids[prompt:])
    return trajectory


def lengths(sample: Any) -> tuple[int, int]:
    """Tokens before the first that the policy made, and those that it made."""
    mask = sample.completion_mask
    if isinstance(mask, list):  # before 1.16
        return mask.index(1) if 1 in mask else len(mask), sum(mask)
    made = int(mask.sum())
    return int(mask.argmax()) if made else len(mask), made


class Ids:
    """Ids at one end of the queue: of version, tokens, and how many such samples came before."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}  # how often a sample has come, by what it is

    def of(self, sample: Any) -> int:
        """A sample's id; asked for once a sample."""
        ids = sample.input_ids
        content = array("q", ids) if isinstance(ids, list) else ids
        key = identify(f"{sample.model_version}/".encode() + content.tobytes())
        before = self._seen.pop(key, 0)
        keep(self._seen, key, before + 1, _MOST)
        return identify(f"{key}/{before}")


_ids = Ids()


class _Queue:
    # The loader fetches a micro-batch ahead: what is trained on may be a version older than it was
    # when TRL took it out of the queue and wrote down how stale it is.
    buffer: Any = None
    last: tuple[Any, TrlSample] | None = None  # taken out, and neither given on nor dropped yet
    given: dict[int, tuple[Any, TrlSample]] = {}  # noqa: RUF012  # by the mapping that they became
    batches: deque[list[TrlSample]] = deque()  # noqa: RUF012  # not trained on yet, in order


def queue_known(call: Call) -> None:
    _Queue.buffer, _Queue.last = call.self.queue, None
    _Queue.given.clear()
    _Queue.batches.clear()


def taken(call: Call) -> None:
    """If a sample was not given on before the next comes, TRL has dropped it for its age."""
    if call.self is not _Queue.buffer or call.exception is not None:
        return
    if _Queue.last is not None:
        dropped = _Queue.last[1]
        uses(call, Fate.STALE, [dropped.id], dropped.tokens)
    sample = call.result
    _Queue.last = (sample, TrlSample(_ids.of(sample), *lengths(sample)))


def given(call: Call) -> None:
    """A sample is given on, as a mapping that has its tokens."""
    last, mapping = _Queue.last, call.result
    if last is not None and mapping["input_ids"] is last[0].input_ids:
        keep(_Queue.given, id(mapping), (mapping, last[1]), _MOST)
        _Queue.last = None


def collated(call: Call) -> None:
    found = list(_below(call.argument("examples")))
    if call.exception is None:
        _Queue.batches.append(found)


def _below(examples: Any) -> Iterator[TrlSample]:
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
