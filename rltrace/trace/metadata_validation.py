"""Checks what a run's small files state: anybody may have written them.

Readers add times, look processes up by name and put numbers into 64-bit columns. What is of another
kind is left out here, once, and so unknown to all of them. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from rltrace.trace.run_dir import READ_FROM, SAMPLED

_MOST = 1 << 62  # so that two of them can be added

Kind = Callable[[object], bool]


def is_whole(value: object) -> bool:
    """Whether it is an integer that a column of times can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and -_MOST < value < _MOST


def whole_text(text: str) -> str:
    """A text that every encoding takes: half a surrogate pair becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def _of(kind: type) -> Kind:
    return lambda said: isinstance(said, kind)


def _is_numbers(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    numbers = [v for v in value.values() if isinstance(v, int | float) and not isinstance(v, bool)]
    return len(numbers) == len(value) and all(-_MOST < v < _MOST for v in numbers)


def _is_clock(value: object) -> bool:
    return isinstance(value, dict) and all(map(is_whole, value.values()))


def _are_trainings(value: object) -> bool:
    """Whether it lists what a process said of itself in each of its trainings."""
    return isinstance(value, list) and all(
        isinstance(one, dict) and is_whole(one.get("since_ns")) and not fitting(one, PROCESS)[1]
        for one in value
    )


_Kinds = Mapping[str, tuple[Kind, str]]

_WHOLE, _TEXT = (is_whole, "no whole number"), (_of(str), "no text")
_LIST, _TABLE = (_of(list), "no list"), (_of(dict), "no table")

RUN: _Kinds = {
    **dict.fromkeys(("start_real_ns", "end_real_ns", "exit_code", "schema_version"), _WHOLE),
    **dict.fromkeys(("command_pid", "wrap_pid", "start_monotonic_ns", "missing_ranks"), _WHOLE),
    **dict.fromkeys(("id", "cwd", "node", "host", "rltrace_version"), _TEXT),
    **dict.fromkeys(("framework", "framework_version", READ_FROM), _TEXT),
    "command": _LIST,
    "settings": _TABLE,
}  # what run.json states
PROCESS: _Kinds = {
    **dict.fromkeys(("pid", "ppid", "rank", "start_ns", "stacks"), _WHOLE),
    **dict.fromkeys(("cores", "parameters"), _WHOLE),
    **dict.fromkeys(("node", "host"), _TEXT),
    **dict.fromkeys(("argv", "hooks"), _LIST),
    **dict.fromkeys(("settings", "versions", "recording-stopped"), _TABLE),
    "clock": (_is_clock, "no pair of times"),
    "cpus": (lambda said: bool(re.fullmatch("[0-9a-f]{1,1024}", str(said))), "no mask"),
    "reward_weights": (_is_numbers, "no table of numbers"),
    "trainings": (_are_trainings, "no list of trainings"),
}  # what the file of a process states


_PROBLEM: _Kinds = {
    "what": _TEXT,
    **dict.fromkeys(
        ("target", "detail"), (lambda said: isinstance(said, str) or is_whole(said), "no text")
    ),
    **dict.fromkeys(("times", "real_ns", "monotonic_ns"), _WHOLE),
}


def problem_of(said: object) -> dict[str, Any]:
    """What a line states of what could not be recorded or read. Errors: TypeError for what is no
    object, ValueError where it does not say what the problem is."""
    problem, _ = fitting(said, _PROBLEM)
    if problem.get("what") is None:
        raise ValueError("it does not say what the problem is")
    return problem


def fitting(said: object, kinds: _Kinds) -> tuple[dict[str, Any], list[str]]:
    """What an object states that fits, and a phrase for what does not. Errors: TypeError."""
    if not isinstance(said, dict):
        raise TypeError("it is no JSON object")
    odd = {
        key: f"{key} is {why}"
        for key, (is_kind, why) in kinds.items()
        if said.get(key) is not None and not is_kind(said[key])
    }
    return {key: value for key, value in said.items() if key not in odd}, list(odd.values())


def only_some(meta: Mapping[str, Any]) -> str:
    """Why nothing is told of the samples of this run; empty where it is."""
    share = (meta.get("settings") or {}).get(SAMPLED)
    if not isinstance(share, int | float) or not 0 < share < 1:
        return ""
    return f"only {100 * share:g} % of the samples were recorded (--sample)"
