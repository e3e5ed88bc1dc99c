"""Samples of AReaL: requests, verdicts, what the trainer takes.

A task of the workflow executor is one prompt; AReaL's own context variable says in which one a
request or a reward is awaited. Samples come out of the executor as rows of tensors without ids; but
each run of trained tokens is what one request answered, so each turn is a trajectory of its own.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, NamedTuple

from rltrace.adapters.table.samples import cut_short, finish, uses, verdict, versions_of
from rltrace.adapters.token_fidelity import runs
from rltrace.hooks.hook import Call
from rltrace.hooks.recorder import Recorder
from rltrace.hooks.sample_api import identify
from rltrace.trace.segment import RowBlock
from rltrace.trace.vocabulary import Fate


class _Answer(NamedTuple):
    trajectory: int
    tokens: int
    digest: int


_ANY_AGE = 10**12  # what AReaL sets for evaluations

_Task = tuple[int, int]  # the engine that it runs on, and its number there
_Made = tuple[int, int]  # trajectory and number of tokens

_answers: dict[_Task, list[_Answer]] = {}
# Of the step that is open, which may get another number.
_uses: deque[RowBlock] = deque(maxlen=1 << 16)
_last: ContextVar[int] = ContextVar("rltrace_areal_request", default=-1)


def asked(call: Call) -> None:
    request, task = call.argument("req"), _task()
    of_task = {} if task is None else {"group": identify(f"{call.self.engine_id}/{task}")}
    call.state = call.row(
        "trajectories",
        trajectory=identify(str(request.rid)),
        prompt_tokens=len(request.input_ids),
        token_ids=1,
        **of_task,
    )


def answered(call: Call) -> None:
    """Its tokens are there, each with the version that generated it; or it failed."""
    if call.state is None:
        return
    if call.exception is not None:
        call.state.set(end_ns=call.end_ns, **cut_short(call.exception))
        return
    response = call.result
    known = versions_of([v for v in response.output_versions if v >= 0])
    known |= finish(response.stop_reason)
    tokens = response.output_tokens
    call.state.set(
        end_ns=call.end_ns,
        response_tokens=len(tokens),
        logprobs=int(len(response.output_logprobs) == len(tokens)),
        **known,
    )
    call.span.set(tokens=len(tokens), items=1)
    trajectory, task = identify(str(call.argument("req").rid)), _task()
    _last.set(trajectory)
    if task is not None and not _evaluates(call.self):
        answer = _Answer(trajectory, len(tokens), _digest(tokens))
        _answers.setdefault((id(call.self), task), []).append(answer)


def judged(call: Call) -> None:
    """A reward function has judged what the request before it in the same task has answered."""
    name = getattr(call.self.reward_fn, "__name__", type(call.self.reward_fn).__name__)
    value = None if call.exception is not None else float(call.result)
    verdict(call, _last.get(), name, value, (call.start_ns, call.end_ns))


def taken(call: Call) -> None:
    """The trainer takes the samples of some tasks, to train on them."""
    provider, found = call.self.staleness_manager.version_provider, list[_Made]()
    for result in call.result or ():
        answers = _answers.pop(_key(provider, result), None) if result is not None else None
        if answers is not None:
            found += _rows(result.trajectory, answers)
    _use(call, provider, found, Fate.TRAINED)


def passed_on(call: Call) -> None:
    """The samples of a task go to a controller elsewhere, and nobody here knows what for."""
    if call.result is not None:
        _answers.pop(_key(call.self.staleness_manager.version_provider, call.result), None)


def rejected(call: Call) -> None:
    """The task that this is called in is given up: by a filter, or since it failed."""
    provider, task = call.self.version_provider, _task()
    fate = Fate.FILTERED if sys.exc_info()[0] is None else Fate.FAILED
    answers = _answers.pop((id(provider), -1 if task is None else task), ())
    _use(call, provider, [answer[:2] for answer in answers], fate)


def uses_are_of(recorder: Recorder) -> None:
    """The step that is open has its number; a next one begins."""
    for _ in range(len(_uses)):  # the executor's thread may add to them meanwhile
        _uses.popleft().set(step=recorder.step)


def _use(call: Call, provider: Any, found: list[_Made], fate: Fate) -> None:
    if found:
        ids, tokens = [one for one, _ in found], [length for _, length in found]
        rows = uses(call, fate, ids, tokens, version=int(provider.get_version()))
        if rows:
            _uses.append(rows)


def _rows(sample: Any, answers: list[_Answer]) -> Iterable[_Made]:
    """Run by run; -1 where no request answered so."""
    ids, masks = sample.get("input_ids"), sample.get("loss_mask")
    if not (_is_at_hand(ids) and _is_at_hand(masks)):
        return
    for row, mask in zip(ids.tolist(), masks.tolist(), strict=True):
        for run in runs(row, mask):
            digest = _digest(run)
            found = next((a for a in answers if a.digest == digest), None)
            if found is not None:
                answers.remove(found)
            yield -1 if found is None else found.trajectory, len(run)


def _is_at_hand(tensor: Any) -> bool:
    """Whether it is a batch of rows that nothing has to be fetched or waited for to read."""
    kind = sys.modules["torch"].Tensor
    return isinstance(tensor, kind) and tensor.device.type == "cpu" and tensor.dim() == 2


def _digest(tokens: Iterable[int]) -> int:
    return identify(array("q", tokens).tobytes())


def _key(provider: Any, result: Any) -> _Task:
    return id(provider), int(getattr(result, "task_id", -1))


def _task() -> int | None:
    found: int | None = sys.modules["areal.utils.perf_tracer"].get_task_id()
    return found


def _evaluates(engine: Any) -> bool:
    """Before 0.5.2 told by an engine of its own, whose samples may be of any age."""
    for name in ("areal.infra.workflow_context", "areal.core.workflow_context"):
        if name in sys.modules:
            return bool(sys.modules[name].get().is_eval)
    return int(engine.config.max_head_offpolicyness) >= _ANY_AGE
