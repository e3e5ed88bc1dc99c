"""Rollouts of Agent Lightning 0.3, where they all meet: in its store.

An attempt at a rollout is a trajectory. The store hands it out with its resources, and is given
what it did as OpenTelemetry spans: by the agent's own process, and by the proxy in front of the
model's server, if any. Versions are those of the resources: the first is 0.
"""

from __future__ import annotations

import sys
from typing import Any

from rltrace.adapters.table.samples import keep, uses, versions_of
from rltrace.hooks.hook import Call
from rltrace.hooks.sample_api import identify
from rltrace.trace.vocabulary import Fate, Finish

_MOST = 10_000  # attempts whose spans may still come
_OF_PROXY = "raw_gen_ai_request"  # the span of a request that has the server's own answer
_ENDS = {"succeeded": -1, "failed": Finish.ERROR, "timeout": Finish.TIMEOUT}
_PROMPTS = (
    "prompt_token_ids",
    "llm.hosted_vllm.prompt_token_ids",
    "agentlightning.operation.output.prompt_token_ids",
)
_ANSWERS = (
    "response_token_ids",
    "llm.hosted_vllm.response_token_ids",
    "agentlightning.operation.output.response_token_ids.0",
    "agentlightning.operation.output.choices.0.token_ids",
    "agentlightning.operation.output.choices.0.provider_specific_fields.token_ids",
)
"""Where Agent Lightning's own adapters look for token ids."""


class _Calls:
    def __init__(self) -> None:
        self.count = self.with_ids = self.logprobs = self.tokens = 0
        self.prompt = -1

    def add(self, attributes: dict[str, Any]) -> None:
        prompt = max(_length(attributes, name) for name in _PROMPTS)
        answer = max(_length(attributes, name) for name in _ANSWERS)
        if answer <= 0:
            answer = _within(attributes.get("llm.hosted_vllm.choices"))
        if self.count == 0:
            self.prompt = prompt
        self.count += 1
        self.with_ids += prompt > 0 and answer > 0
        self.tokens += max(answer, 0)
        choices = str(attributes.get("llm.hosted_vllm.choices", ""))
        self.logprobs += "logprobs.content" in attributes or "'logprobs': {" in choices

    def columns(self) -> dict[str, int]:
        """-1 tokens take back what was known before a call without ids."""
        whole = self.with_ids == self.count
        return {
            "turns": self.count,
            "token_ids": int(whole),
            "logprobs": int(self.logprobs == self.count),
            "prompt_tokens": self.prompt if whole else -1,
            "response_tokens": self.tokens if whole else -1,
        }


class _Attempt:
    """An attempt at a rollout; `silent_ns` is when it fell silent, -1 where it is heard of."""

    def __init__(self, row: Any, trajectory: int, trains: bool) -> None:
        self.row = row
        self.trajectory = trajectory
        self.trains = trains
        self.agent, self.proxy = _Calls(), _Calls()
        self.ended = False
        self.silent_ns = -1

    @property
    def calls(self) -> _Calls:
        """The server's word goes before the agent's."""
        return self.proxy if self.proxy.count else self.agent


_attempts: dict[str, _Attempt] = {}
_latest: dict[str, _Attempt] = {}  # by rollout; taken out as the algorithm gets it


class _Resources:
    """The trainer's policy may count other versions."""

    versions: dict[str, int] = {}  # noqa: RUF012  # by the ids of the resources
    latest = -1


def resources_stored(call: Call) -> None:
    if call.exception is None:
        _Resources.latest += 1
        _Resources.versions[call.result.resources_id] = _Resources.latest
        call.span.set(version=_Resources.latest)


def handed_out(call: Call) -> None:
    """A runner gets one rollout, several, or none since the queue is empty."""
    found = call.result if isinstance(call.result, list | tuple) else [call.result]
    for rollout in found:
        if rollout is not None:
            _begins(call, rollout)


def _begins(call: Call, rollout: Any) -> None:
    replaced = _latest.get(rollout.rollout_id)
    if replaced is not None and replaced.silent_ns > 0:
        _ends(replaced, replaced.silent_ns, Finish.TIMEOUT)
    trajectory = identify(rollout.attempt.attempt_id)
    version = _Resources.versions.get(rollout.resources_id)
    columns = versions_of([] if version is None else [version])
    data = (rollout.metadata or {}).get("data_id")
    if data is not None:
        columns |= dict.fromkeys(("prompt", "group"), identify(str(data)))
    row = call.row("trajectories", start_ns=call.end_ns, trajectory=trajectory, **columns)
    attempt = _Attempt(row, trajectory, trains=rollout.mode == "train")
    keep(_attempts, rollout.attempt.attempt_id, attempt, _MOST)  # nobody asks for the oldest one
    keep(_latest, rollout.rollout_id, attempt, _MOST)


def told(call: Call) -> None:
    attempt = _attempts.get(call.argument("attempt_id"))
    if attempt is None or attempt.row is None:
        return
    attempt.silent_ns = -1
    for span in call.argument("spans"):
        attributes = span.attributes or {}
        if span.name == _OF_PROXY:
            attempt.proxy.add(attributes)
        elif "openai.chat.completion" in span.name:
            attempt.agent.add(attributes)
        else:
            _verdicts(call, attempt.trajectory, span)
    if attempt.calls.count:
        attempt.row.set(**attempt.calls.columns())


def _verdicts(call: Call, trajectory: int, span: Any) -> None:
    for reward in sys.modules["agentlightning.emitter.reward"].get_rewards_from_span(span):
        component = call.recorder.name(reward.name)
        call.row("rewards", trajectory=trajectory, component=component, value=float(reward.value))


def attempt_updated(call: Call) -> None:
    """By its runner, or by the store, which watches for those that are late or silent."""
    if call.exception is not None:
        return
    told, changed, _ = call.result
    attempt = _attempts.get(told.attempt_id)
    if attempt is None or attempt.row is None or attempt.ended:
        return
    if told.status != "unresponsive":
        attempt.silent_ns = -1
        if (finish := _ENDS.get(told.status)) is not None:
            _ends(attempt, call.end_ns, finish)
    elif changed and changed[0].status == "requeuing":
        # Its rollout may still go on with this attempt, until a runner gets it.
        attempt.silent_ns = call.end_ns
    elif attempt.silent_ns < 0:  # it has failed with it
        _ends(attempt, call.end_ns, Finish.TIMEOUT)


def _ends(attempt: _Attempt, time_ns: int, finish: int) -> None:
    attempt.ended = True
    attempt.row.set(end_ns=time_ns, **({} if finish < 0 else {"finish": finish}))


def waited_for(call: Call) -> None:
    """The algorithm has rollouts to train on. It asks for those again that it has had."""
    found = {}
    for rollout in call.result or ():
        attempt = _latest.pop(rollout.rollout_id, None)
        if attempt is not None and attempt.trains:
            found[attempt] = Fate.TRAINED if rollout.status == "succeeded" else Fate.FAILED
    tokens = [one.calls.columns()["response_tokens"] if one.calls.count else -1 for one in found]
    ids = [one.trajectory for one in found]
    uses(call, [*found.values()], ids, tokens, version=_Resources.latest)


def _length(attributes: dict[str, Any], name: str) -> int:
    """How many ids an attribute has: a list, one as text, or an attribute each; -1 for none."""
    value = attributes.get(name)
    if isinstance(value, str):
        return value.count(",") + 1 if any(c.isdigit() for c in value[:4]) else 0
    if isinstance(value, list | tuple):
        return len(value)
    return sum(key.startswith(f"{name}.") for key in attributes) or -1


def _within(choices: Any) -> int:
    """The same of the token ids in the text of a server's choices."""
    text = str(choices or "")
    start = text.find("'token_ids': [")
    return -1 if start < 0 else _length({"": text[start + 13 : text.find("]", start)]}, "")
