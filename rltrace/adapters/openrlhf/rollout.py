"""Readers in a rollout actor: trajectories, their requests, environment steps.

A sample is one `execute` of an executor, in an asyncio task of its own: a context variable says to
which trajectory a request belongs. Its id travels to the trainer as one more key of the response.
"""

from __future__ import annotations

from contextvars import ContextVar
from itertools import count
from typing import Any

from rltrace.adapters.openrlhf import engine
from rltrace.adapters.table.samples import cut_short, finish
from rltrace.adapters.token_fidelity import Sampled
from rltrace.hooks.hook import Call
from rltrace.hooks.sample_api import identify
from rltrace.trace.vocabulary import Finish, Stage

TAG = "rltrace_trajectory"
"""The key under which a response carries `(trajectory id, group id)`."""

_STAMPS = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


class ExecutorRun:
    def __init__(self, tag: tuple[int, int], row: Any) -> None:
        self.tag = tag
        self.row = row
        self.env_ns = 0
        self.last_ns = -1  # when its latest request or environment step ended
        self.ended = self.judged = False
        self.verdict: Any = None  # its row
        self.timed = False  # whether the reward function said when it ended
        self.known: dict[str, int] = {}  # columns, from its requests
        self.sampled = Sampled()
        self.before = _elsewhere.count

    def end(self, end_ns: int, **columns: int) -> None:
        """Generation is over; what comes later (the verdict) is no part of it."""
        if not self.ended and self.row is not None:
            self.ended = True
            self.row.set(end_ns=end_ns, env_ns=self.env_ns, **(self.known | columns))


_MOST_ELSEWHERE = 4096
_elsewhere = Sampled(_MOST_ELSEWHERE)
"""What requests have given that were made in no trajectory's task: an executor may serve an API to
its agents, from a thread."""

current: ContextVar[ExecutorRun | None] = ContextVar("rltrace_openrlhf_trajectory", default=None)
_group: ContextVar[tuple[int, int]] = ContextVar("rltrace_openrlhf_group", default=(-1, -1))
_next = count().__next__


def group_begins(call: Call) -> None:
    """The samples of one prompt begin: `generate_responses(prompt, ...)`."""
    group = identify(f"{call.recorder.who}/group/{_next()}")
    _group.set((group, identify(str(call.argument("prompt")))))


def begins(call: Call) -> None:
    """A sample begins. A user's executor that calls OpenRLHF's own is still one sample."""
    if current.get() is not None:
        return
    group, prompt = _group.get()
    tag = (identify(f"{call.recorder.who}/{_next()}"), group)
    row = call.row("trajectories", trajectory=tag[0], group=group, prompt=prompt)
    call.state = ExecutorRun(tag, row)
    call.state.known = {"first_version": call.recorder.version}
    current.set(call.state)


def asking(call: Call) -> None:
    call.state = call.recorder.version


def requested(call: Call) -> None:
    """Where vLLM's stamps are there, generation begins when the request has been scheduled, and the
    versions are those that made its first and its last token."""
    output, trajectory = call.result, current.get()
    if output is None:
        return
    completion = output.outputs[0]
    tokens = len(completion.token_ids)
    stamps = _stamps(call, getattr(output, "metrics", None))
    first, last = call.state, call.recorder.version
    if stamps is not None:
        scheduled_ns, first_ns, last_ns = stamps
        first, last = engine.version_at(first_ns, first), engine.version_at(last_ns, last)
        # Until it is scheduled, a request generates nothing.
        waited = call.recorder.begin(call.recorder.name("vLLM's queue"), Stage.OTHER)
        waited.set(start_ns=call.start_ns, end_ns=scheduled_ns)
        call.span.set(start_ns=scheduled_ns)
    call.span.set(items=1, tokens=tokens, version=first)
    if trajectory is None:
        _elsewhere.add(completion.token_ids)
        return
    trajectory.sampled.add(completion.token_ids)
    known = trajectory.known
    if "turns" not in known:
        known |= {"turns": 0, "response_tokens": 0, "first_version": first}
        known["prompt_tokens"] = len(call.argument("prompt_token_ids"))
        known["logprobs"] = int(completion.logprobs is not None)
        if stamps is not None:
            known["first_token_ns"] = first_ns
    known["turns"] += 1
    known["response_tokens"] += tokens
    known["last_version"] = last
    known |= finish(completion.finish_reason)
    trajectory.last_ns = call.end_ns


def _stamps(call: Call, metrics: Any) -> tuple[int, int, int] | None:
    """When a request was scheduled and when its first and last token came, in monotonic ns. vLLM
    stamps with `time.monotonic`, one clock for a node; what does not lie within the call is of
    another."""
    if metrics is None or not all(hasattr(metrics, name) for name in _STAMPS):
        return None
    times = [int(getattr(metrics, name) * 1e9) for name in _STAMPS]
    in_order = [call.start_ns, *times, call.end_ns]
    return (times[1], times[2], times[3]) if in_order == sorted(in_order) else None


def stepped(call: Call) -> None:
    trajectory = current.get()
    if trajectory is not None:
        trajectory.env_ns += call.end_ns - call.start_ns
        trajectory.last_ns = call.end_ns


def ends(call: Call) -> None:
    """A sample is complete, its verdict too if it is given here."""
    trajectory, response = call.state, call.result
    if trajectory is None:
        return
    current.set(None)
    if call.exception is not None:
        trajectory.end(call.end_ns)
        if trajectory.row is not None:
            trajectory.row.set(**cut_short(call.exception))
        return
    known = {"last_version": call.recorder.version} | trajectory.known
    given: dict[str, int] = {}
    told: dict[str, Any] = response if isinstance(response, dict) else {}
    told[TAG] = trajectory.tag
    ids = told.get("observation_tokens") or ()
    ranges = told.get("action_ranges") or ()  # the policy's among them; the environment's between
    if told.get("truncated"):
        known["finish"] = Finish.LENGTH
    if "rollout_log_probs" in told:
        given["logprobs"] = int(told["rollout_log_probs"] is not None)
    if ranges and "turns" not in known:  # its requests were made in other tasks
        known |= {"prompt_tokens": ranges[0][0], "turns": len(ranges)}
        known["response_tokens"] = sum(end - start for start, end in ranges)
    if ids and ranges:
        given |= _kept(trajectory, [ids[start:end] for start, end in ranges])
    trajectory.end(trajectory.last_ns if trajectory.last_ns > 0 else call.end_ns, **known)
    if trajectory.row is not None:  # it may have ended before, as its verdict was asked for
        trajectory.row.set(**given)
        if ids and ranges and call.recorder.captures_tokens:
            prompt_tokens = ranges[0][0]
            call.recorder.capture(trajectory.row, ids[:prompt_tokens], ids[prompt_tokens:])


def _kept(trajectory: ExecutorRun, runs: list[list[int]]) -> dict[str, int]:
    answers = _elsewhere.count - trajectory.before  # since it has begun
    if trajectory.sampled.count or not 0 < answers <= _MOST_ELSEWHERE:  # not all are remembered
        return trajectory.sampled.column(runs)
    return _elsewhere.column(runs)
