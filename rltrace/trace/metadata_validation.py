"""Reads run.json, and checks what a run's small files state: anybody may have written them.

Readers add times, look processes up by name and put numbers into 64-bit columns. What is of another
kind is left out here, once, and so unknown to all of them. Standard library only.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from rltrace.trace.clock import node_id
from rltrace.trace.errors import RltraceError
from rltrace.trace.job_exceptions import contained
from rltrace.trace.read.bounds import EVER_NS
from rltrace.trace.run_dir import READ_FROM, RUN_FILE, holds_run, write_json
from rltrace.trace.schema import SCHEMA_VERSION
from rltrace.trace.untrusted_files import parsed, read_own

Kind = Callable[[object], bool]


def is_whole(value: object) -> bool:
    """Whether it is an integer that a column of times can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and -EVER_NS < value < EVER_NS


def whole_text(text: str) -> str:
    """A text that every encoding takes: half a surrogate pair becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def _of(kind: type) -> Kind:
    return lambda said: isinstance(said, kind)


def _is_numbers(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    numbers = [v for v in value.values() if isinstance(v, int | float) and not isinstance(v, bool)]
    return len(numbers) == len(value) and all(-EVER_NS < v < EVER_NS for v in numbers)


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
    "signalled_real_ns": _WHOLE,
}  # what run.json states
PROCESS: _Kinds = {
    **dict.fromkeys(("pid", "ppid", "rank", "start_ns", "stacks"), _WHOLE),
    **dict.fromkeys(("cores", "parameters", "readers_cpu_ns", "readers_events"), _WHOLE),
    **dict.fromkeys(("node", "host"), _TEXT),
    **dict.fromkeys(("argv", "hooks"), _LIST),
    **dict.fromkeys(("settings", "versions", "recording-stopped"), _TABLE),
    "clock": (lambda v: isinstance(v, dict) and all(map(is_whole, v.values())), "no pair of times"),
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


_SHOWN = ("id", "node", "host", "framework", "framework_version", "rltrace_version")
"""Texts that are shown and handed on; nothing is opened or run by them."""
_PARTIAL = {"sampled": "--sample", "max_bytes": "--max-bytes"}  # settings that left rows out


def described(said: object, path: str) -> dict[str, Any]:
    """What run.json states, without what cannot be. Errors: TypeError for what is no object,
    `RltraceError` for a run that this version does not read."""
    told, _ = fitting(said, RUN)
    told.update((key, whole_text(told[key])) for key in _SHOWN if told.get(key) is not None)
    version = told.get("schema_version")
    if not isinstance(version, int):
        raise RltraceError(f"{path}/{RUN_FILE} states no schema version: no run")
    if version > SCHEMA_VERSION:
        raise RltraceError(
            f"{path} was written with trace schema {version}, this rltrace reads up to "
            f"{SCHEMA_VERSION}: upgrade rltrace-toolkit"
        )
    settings = told.get("settings") or {}
    if left_out := [option for key, option in _PARTIAL.items() if key in settings]:
        raise RltraceError(
            f"{path} was recorded with `wrap {' '.join(left_out)}`: its figures would be of a part "
            "of the job, so this rltrace does not read it"
        )
    return told


def read_run_json(path: str) -> dict[str, Any]:
    """The run's description. Errors: RltraceError when the directory is no run."""
    try:
        loaded = parsed(read_own(f"{path}/{RUN_FILE}"))
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.exists(path):
            raise RltraceError(f"{path} does not exist: `rltrace ls` lists the runs here") from None
        with contained(OSError):
            if inside := sorted(n for n in os.listdir(path) if holds_run(f"{path}/{n}")):
                raise RltraceError(folder_of_runs(path, inside)) from None
        hint = "give the directory that wrap named, or that `rltrace import` made of a log"
        raise RltraceError(f"{path} is no run (it has no {RUN_FILE}): {hint}") from None
    except (OSError, ValueError) as error:
        raise RltraceError(f"{path}/{RUN_FILE} cannot be read: {error}") from None
    if not isinstance(loaded, dict):
        raise RltraceError(f"{path}/{RUN_FILE} is not a run's description")
    return loaded


def folder_of_runs(where: str, runs: list[str]) -> str:
    """What is said where a run was asked for, of a folder (path or URL) that holds `runs`."""
    said = f"{where} is no run, but a folder that holds"
    one = f"{where.rstrip('/')}/{runs[-1]}"
    if len(runs) == 1:
        return f"{said} one: give {one}"
    return f"{said} {len(runs)}: give one of them, such as {one} (`rltrace ls {where}` lists them)"


def read_described(path: str) -> dict[str, Any]:
    """As `read_run_json`, without what cannot be. Errors: RltraceError also as `described`."""
    return described(read_run_json(path), path)


def is_of_here(told: dict[str, Any]) -> bool:
    """Whether this node recorded a run, since it was started."""
    return told.get("node") == node_id()


def now_ns(told: dict[str, Any]) -> int:
    """Now on a run's time line (Unix ns); where it began, a clock that was set moves nothing."""
    real, monotonic = told.get("start_real_ns"), told.get("start_monotonic_ns")
    if not is_of_here(told) or not isinstance(real, int) or not isinstance(monotonic, int):
        return time.time_ns()
    return real + time.monotonic_ns() - monotonic


def update_run_json(path: str, **fields: Any) -> None:
    """Changes fields of run.json; only `wrap` and the agent do. Errors: as reading."""
    write_json(f"{path}/{RUN_FILE}", {**read_run_json(path), **fields})
