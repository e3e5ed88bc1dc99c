"""Readers of verdicts: of functions, servers, agents and reward models.

OpenRLHF swallows what a reward function raises and goes on without a reward; here it is an error.
"""

from __future__ import annotations

from typing import Any

from rltrace.adapters.openrlhf import rollout
from rltrace.adapters.openrlhf.rollout import current
from rltrace.adapters.table.samples import score, verdict
from rltrace.hooks.hook import Call, Hook
from rltrace.hooks.patch.call_observer import Observer
from rltrace.hooks.patch.wrapping import Patch, observers
from rltrace.trace.job_exceptions import contained
from rltrace.trace.vocabulary import Outcome


def judging(call: Call) -> None:
    """Generation has ended and the verdict is asked for: it has a row though it may never come."""
    trajectory = current.get()
    call.span.set(items=len(call.argument("queries_list")))
    if trajectory is None:
        return
    trajectory.judged = True
    trajectory.end(trajectory.last_ns if trajectory.last_ns > 0 else call.start_ns)
    function = getattr(call.self, "reward_func", None)
    judge = "reward server" if function is None else getattr(function, "__name__", "function")
    component = call.recorder.name(str(judge))
    call.state = call.row("rewards", trajectory=trajectory.tag[0], component=component)
    trajectory.verdict = call.state


def function_begins(call: Call) -> None:
    """The user's function runs at last: until now its verdict waited for a thread."""
    trajectory = current.get()
    if trajectory is not None and trajectory.verdict is not None:
        trajectory.verdict.set(start_ns=call.start_ns)


def function_ended(call: Call) -> None:
    """It has come to its verdict, which the engine's loop hears of when it has time."""
    trajectory = current.get()
    if trajectory is not None and trajectory.verdict is not None:
        trajectory.verdict.set(end_ns=call.end_ns)
        trajectory.timed = True


def judged(call: Call) -> None:
    if call.state is None:
        return
    first = call.result[0] if call.result else None
    known = score(number(first.get("rewards")) if isinstance(first, dict) else None)
    if isinstance(call.exception, TimeoutError):
        known["outcome"] = Outcome.TIMEOUT
    trajectory = current.get()
    if trajectory is None or not trajectory.timed:
        known["end_ns"] = call.end_ns
    call.state.set(**known)


def number(value: Any) -> float | None:
    """A reward as a number: OpenRLHF's users give floats, tensors of one element, lists of one."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    with contained(TypeError, ValueError, RuntimeError):
        return float(value)
    return None


# They are loaded from a file that the user names, so they are watched once they are met.

OWN = "openrlhf.utils.agent"

_watched: set[tuple[type, str]] = set()


def sample_ends(call: Call) -> None:
    """Its executor may have brought a reward of its own."""
    trajectory, response = call.state, call.result
    given = response.get("reward") if isinstance(response, dict) else None
    if trajectory is not None and not trajectory.judged and given is not None:
        verdict(call, trajectory.tag[0], "agent", number(given))
    rollout.ends(call)


def group_begins(call: Call) -> None:
    """The samples of a prompt begin, with an executor that may be the user's own."""
    executor = getattr(call.self, "executor", None)
    if executor is not None:
        _watch(type(executor), "execute", None, before=rollout.begins, after=sample_ends)
    rollout.group_begins(call)


def environment_known(call: Call) -> None:
    cls = call.argument("agent_instance_cls")
    for method in ("step", "reset"):
        _watch(cls, method, "env", after=rollout.stepped)


def verdict_wanted(call: Call) -> None:
    """A verdict of the user's reward function, which runs in a thread when one is free."""
    function = vars(call.self).get("reward_func")
    if callable(function) and not observers(function):
        name = str(getattr(function, "__name__", "reward_func"))
        target = f"{getattr(function, '__module__', '')}:{name}"
        hook = Hook(target, before=function_begins, after=function_ended)
        Patch(call.self, "reward_func", Observer(hook))
    judging(call)


def _watch(cls: Any, method: str, stage: str | None, **readers: Any) -> None:
    """Hooks the method where the user's class, or a base of it, defines it."""
    owner = next((base for base in cls.__mro__ if method in vars(base)), None)
    if owner is None or owner.__module__ == OWN or (owner, method) in _watched:
        return
    _watched.add((owner, method))
    name = f"{owner.__name__}.{method}"
    target = f"{owner.__module__}:{name}"
    Patch(owner, method, Observer(Hook(target, stage, name=name, **readers)))
