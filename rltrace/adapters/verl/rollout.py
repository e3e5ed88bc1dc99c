"""Readers where agent loops run: trajectories, requests, verdicts.

One agent loop is one asyncio task, and so are the requests and tool calls that it awaits: a context
variable says to which trajectory they belong, and whether that is one of a validation.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import Any

from rltrace.adapters.table.samples import finish, keep, verdict, versions_of
from rltrace.adapters.table.stated import at
from rltrace.adapters.token_fidelity import Sampled, runs
from rltrace.hooks.hook import Call
from rltrace.hooks.sample_api import identify
from rltrace.trace.vocabulary import Finish

ONE_WORKER = "uid_"
"""How the prompts of fully-async begin: the samples of each of them stay together."""

_MOST_PROMPTS = 1 << 16


class _Rollout:
    def __init__(self, own_id: str | None, validate: bool) -> None:
        self.id = own_id
        self.validate = validate
        self.row: Any = None
        self.ended = False
        self.sampled = Sampled()
        self.stop: str | None = None
        self.versions: list[int] = []


_current: ContextVar[_Rollout | None] = ContextVar("rltrace_verl_rollout", default=None)
_asking: ContextVar[Any] = ContextVar("rltrace_verl_request", default=None)
_occurrences: dict[str, int] = {}


def begins(call: Call) -> None:
    """An agent loop begins: `AgentLoopWorker._run_agent_loop(sampling_params, trajectory, ...)`."""
    fields = call.kwargs
    validate = bool((call.argument("trajectory") or {}).get("validate"))
    call.state = rollout = _Rollout(None if validate else _id(fields), validate)
    _current.set(rollout)
    if validate:
        return
    known = {"group": "uid", "prompt": "index", "task": "data_source"}
    ids = {"trajectory": rollout.id} | {column: fields.get(of) for column, of in known.items()}
    columns = {column: identify(str(own)) for column, own in ids.items() if own is not None}
    rollout.row = call.row("trajectories", **columns)


def trains(_call: Call) -> bool:
    """Requests of a validation are no rollout."""
    rollout = _current.get()
    return rollout is None or not rollout.validate


def asking(call: Call) -> None:
    _asking.set(call.span)


def acquired(call: Call) -> None:
    """A server is found: until here the request has waited, from here on it generates."""
    request = _asking.get()
    if request is not None and call.exception is None:
        request.set(start_ns=call.end_ns)


def requested(call: Call) -> None:
    """A request has been answered (`TokenOutput`), in part if it was aborted."""
    output = call.result
    if output is None:
        return
    extra = getattr(output, "extra_fields", None) or {}
    versions = [extra.get(key) for key in ("global_steps", "min_global_steps", "max_global_steps")]
    known = [int(version) for version in versions if version is not None]
    call.span.set(items=1, tokens=len(output.token_ids))
    if known:
        call.span.set(version=known[0])
    rollout = _current.get()
    if rollout is not None:
        if rollout.row is not None:
            rollout.sampled.add(output.token_ids)
        rollout.stop = output.stop_reason
        rollout.versions += known


def generated(call: Call) -> None:
    """Before 0.7, where verdicts are no call of their own: the agent loop's own end."""
    rollout = _current.get()
    if rollout is not None and call.result is not None:
        _ends(call, rollout, [call.result], call.end_ns)


def judging(call: Call) -> None:
    """Generation has ended and the verdict is asked for: `_compute_score(outputs, ...)`."""
    outputs = _outputs(call)
    rollout = _current.get()
    if rollout is not None:
        _ends(call, rollout, outputs, call.start_ns)
    call.state = outputs[-1].reward_score is None


def judged(call: Call) -> None:
    """The latency is the agent loop's; there is none where it brought its own verdict."""
    rollout = _current.get()
    outputs = _outputs(call)
    if rollout is None or rollout.id is None:
        return
    value = outputs[-1].reward_score
    if value is None and call.exception is None:
        return
    fields = call.argument("kwargs") or {}
    times_ns = (call.start_ns, call.end_ns) if call.state else None
    for place in range(len(outputs)):
        _verdict(call, _output_id(rollout.id, place), fields, value, times_ns)


def ends(call: Call) -> None:
    rollout = call.state
    if rollout is None or rollout.row is None:
        return
    if call.exception is not None:
        if not rollout.ended:
            rollout.row.set(end_ns=call.end_ns)
        rollout.row.set(finish=Finish.ERROR)
    elif not rollout.ended:
        rollout.row.set(end_ns=call.end_ns, **versions_of(sorted(rollout.versions)))


def ends_with_score(call: Call) -> None:
    """Before 0.7 the verdict shows in what the agent loop returns, without its duration."""
    ends(call)
    rollout, value = call.state, getattr(call.result, "reward_score", None)
    if rollout is not None and rollout.id is not None and value is not None:
        _verdict(call, rollout.id, call.kwargs, value)


def judges(call: Call) -> bool:
    """A reward worker's call around the reward function, which is hooked itself: what verl's own
    managers spend beside it is no verifier. A manager of the user's may call anything."""
    manager = getattr(call.self, "reward_manager", None)
    known = type(manager).__module__.startswith("verl.")
    # A reward model with a user's reward function is asked by that function, else by verl.
    return bool(at(call.self, "config.reward.reward_model.enable")) or not known


def _ends(call: Call, rollout: _Rollout, outputs: list[Any], end_ns: int) -> None:
    if rollout.row is None or rollout.ended:
        return
    rollout.ended = True
    limit = _response_limit(call.self)
    for place, output in enumerate(outputs):
        row = rollout.row
        if place:  # an agent loop may give several trajectories
            own_id = identify(_output_id(str(rollout.id), place))
            row = call.row("trajectories", trajectory=own_id)
        columns = versions_of(sorted(rollout.versions)) | finish(rollout.stop)
        if limit is not None and len(output.response_ids) >= limit:
            columns["finish"] = Finish.LENGTH
        row.set(
            end_ns=end_ns,
            prompt_tokens=len(output.prompt_ids),
            response_tokens=sum(output.response_mask),  # without what tools answered
            turns=output.num_turns,
            env_ns=int(output.metrics.tool_calls * 1e9),
            preemptions=int(getattr(output.metrics, "num_preempted", -1)),
            logprobs=int(getattr(output, "response_logprobs", None) is not None),
            # A loop may ask servers over an API of its own, where nobody sees what they answer.
            **rollout.sampled.column(runs(output.response_ids, output.response_mask)),
            **columns,
        )
        call.recorder.capture(row, output.prompt_ids, output.response_ids)


def _verdict(
    call: Call, own_id: str, fields: Any, value: Any, times_ns: tuple[int, int] | None = None
) -> None:
    number = None if call.exception is not None or value is None else float(value)
    verdict(call, identify(own_id), fields.get("data_source", "score"), number, times_ns)


def _outputs(call: Call) -> list[Any]:
    outputs = call.argument("outputs", call.argument("output"))
    return outputs if isinstance(outputs, list) else [outputs]


def _output_id(own_id: str, place: int) -> str:
    return own_id if place == 0 else f"{own_id.removesuffix('_0')}_{place}"


def _id(fields: dict[str, Any]) -> str | None:
    """The id under which the trainer will know this trajectory.

    V1 has keys, `{uid}_{session_id}_{output}`. The legacy trainers only know rows: the n samples of
    a prompt are told apart by the worker that runs them and the order in which it begins them,
    which `fates.rows_arrive` derives from their place in the batch. Fully-async runs all of a
    prompt in one worker, and its trainer does not know in which.
    """
    uid = fields.get("uid")
    if uid is None:
        return None
    if fields.get("session_id") is not None:
        return f"{uid}_{fields['session_id']}_0"
    alone = str(uid).startswith(ONE_WORKER)
    worker = 0 if alone else _worker_number()
    if worker is None:
        return None
    place = _occurrences.get(uid, -1) + 1
    keep(_occurrences, uid, place, _MOST_PROMPTS)
    return row_id(uid, worker, place)


def row_id(uid: Any, worker: int, place: int) -> str:
    """The id of a row of a legacy batch: the `place`-th sample of a prompt that a worker began."""
    return f"{uid}/{worker}/{place}"


def _worker_number() -> int | None:
    """verl names its agent loop workers `agent_loop_worker_{number}`, with a suffix since 0.7."""
    name = sys.modules["ray"].get_runtime_context().get_actor_name() or ""
    number = name.removeprefix("agent_loop_worker_").partition("_")[0]
    return int(number) if number.isdigit() else None


def _response_limit(worker: Any) -> int | None:
    """verl's own criterion of a clipped response: it is as long as responses may be."""
    paths = ("rollout_config.response_length", "config.actor_rollout_ref.rollout.response_length")
    limit = at(worker, *paths)
    return limit if isinstance(limit, int) else None
