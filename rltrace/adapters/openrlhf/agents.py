"""Classes of the user's that OpenRLHF calls and no hook can name: executors and environments.

They are loaded from a file that the user names, so they are watched once they are met.
"""

from __future__ import annotations

from typing import Any

from rltrace.adapters.openrlhf import rollout, verdicts
from rltrace.hooks.hook import Call, Hook
from rltrace.hooks.observing import Observer
from rltrace.hooks.wrapping import Patch, observers

OWN = "openrlhf.utils.agent"

_watched: set[tuple[type, str]] = set()


def sample_ends(call: Call) -> None:
    verdicts.agent_judged(call)
    rollout.ends(call)


def group_begins(call: Call) -> None:
    """The samples of a prompt begin, with an executor that may be the user's own."""
    executor = getattr(call.self, "executor", None)
    if executor is not None:
        _watch(type(executor), "execute", None, before=rollout.begins, after=sample_ends)
    rollout.group_begins(call)


def environment_known(call: Call) -> None:
    """A multi-turn executor is given the class of its environments."""
    cls = call.argument("agent_instance_cls")
    for method in ("step", "reset"):
        _watch(cls, method, "env", after=rollout.stepped)


def verdict_wanted(call: Call) -> None:
    """A verdict of the user's reward function, which runs in a thread when one is free."""
    function = vars(call.self).get("reward_func")
    if callable(function) and not observers(function):
        name = str(getattr(function, "__name__", "reward_func"))
        target = f"{getattr(function, '__module__', '')}:{name}"
        hook = Hook(target, before=verdicts.function_begins, after=verdicts.function_ended)
        Patch(call.self, "reward_func", Observer(hook))
    verdicts.judging(call)


def _watch(cls: Any, method: str, stage: str | None, **readers: Any) -> None:
    """Hooks the method where the user's class, or one that it inherits from, defines it."""
    owner = next((base for base in cls.__mro__ if method in vars(base)), None)
    if owner is None or owner.__module__ == OWN or (owner, method) in _watched:
        return
    _watched.add((owner, method))
    name = f"{owner.__name__}.{method}"
    target = f"{owner.__module__}:{name}"
    Patch(owner, method, Observer(Hook(target, stage, name=name, **readers)))
