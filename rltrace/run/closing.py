"""Completing `run.json` when a run is over: its end, its exit code, and the framework it used."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rltrace.hooks.hook import split_target
from rltrace.hooks.idle import INSIDE
from rltrace.trace.clock import node_id
from rltrace.trace.duration import OUTLIVED
from rltrace.trace.errors import RltraceError
from rltrace.trace.run_dir import (
    NAMES,
    NODES,
    PROBLEMS,
    PROCESS,
    RUN_FILE,
    RUN_VARIABLE,
    append_line,
    now_ns,
    read_run_json,
    update_run_json,
)
from rltrace.trace.texts import told_in
from rltrace.trace.vocabulary import STEP_SPAN

_GO_S = 1.0
"""How long what a command has started may take to end when it has, as workers do."""


def close_run(run_dir: Path, exit_code: int | None) -> int:
    """Writes the end of a run; `exit_code` is `None` when nobody saw it. Returns how many processes
    outlive the command. Errors: OSError, `RltraceError`."""
    ended_ns = now_ns(read_run_json(str(run_dir)))
    until = time.monotonic() + _GO_S
    # A process that forks and ends while it is looked for is found the second time, as its child.
    while (left := _of_the_run(run_dir) or _of_the_run(run_dir)) and time.monotonic() < until:
        time.sleep(0.05)
    outlived = {OUTLIVED: left} if left else {}
    told = {"end_real_ns": ended_ns, "exit_code": exit_code, **outlived, **_framework(run_dir)}
    update_run_json(str(run_dir), **told)
    return left


def _of_the_run(run_dir: Path) -> int:
    """How many processes of this node were started within a run and live: also those that have not
    recorded anything yet. Their environment tells, as far as it may be read."""
    mark, found = os.fsencode(f"{RUN_VARIABLE}={run_dir}"), 0
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            found += mark in environment.read_bytes().split(b"\0")
    return found


def is_gone(run_dir: Path, made_by: int | None) -> bool:
    """Whether the directory of the run that a process made was deleted, and maybe another run made
    there."""
    if not (run_dir / RUN_FILE).exists():
        return True
    with suppress(RltraceError):  # said when the run is completed
        return read_run_json(str(run_dir)).get("wrap_pid") != made_by
    return False


def job_processes(run_dir: Path) -> list[dict[str, Any]]:
    """The process files of a run, as far as they can be read, those of the agents left out."""
    found = map(told_in, (run_dir / PROCESS).glob("*.json"))
    return [process for process in found if process and process.get("role") != "agent"]


def what_hooks_missed(run_dir: Path, hooks: Sequence[str]) -> list[str]:
    """A sentence for each of the user's hooks that recorded nothing. Errors: OSError."""
    placed = {target for process in job_processes(run_dir) for target in process.get("hooks") or ()}
    names = "".join(path.read_text("utf-8") for path in (run_dir / NAMES).glob("*.jsonl"))
    reasons = _reasons(run_dir)
    said = []
    for hook in hooks:
        target, _, stage = hook.partition("=")
        name = STEP_SPAN if stage == STEP_SPAN else split_target(target)[1]
        if target not in placed:
            why = reasons.get(target, "no process ran such code where it can be hooked")
            said.append(f"--hook {hook} was never put in place: {why}")
        elif f'"{name}"]' not in names:
            said.append(f"--hook {hook} recorded nothing: {reasons.get(target, 'never called')}")
    return said


def _reasons(run_dir: Path) -> dict[str, str]:
    """Why hooks recorded nothing, by their target, as far as a process has told."""
    found = {}
    for path in (run_dir / PROBLEMS).glob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            with suppress(ValueError, TypeError, KeyError):  # reading the run reports it
                problem = json.loads(line)
                if problem["what"] in ("hook-failed", "hook-missing", INSIDE):
                    found[str(problem["target"])] = str(problem["detail"])
    return found


def _framework(run_dir: Path) -> dict[str, str | None]:
    """The framework that most processes of the job used."""
    processes = job_processes(run_dir)
    used = Counter(p["adapter"] for p in processes if isinstance(p.get("adapter"), str))
    if not used:
        return {}
    ((name, _),) = used.most_common(1)
    versions = [(p.get("versions") or {}).get(name) for p in processes]
    return {
        "framework": name,
        "framework_version": next((str(v) for v in versions if v), None),
    }


# --- an agent that was killed and not replaced (`wrap.AgentKeeper`) is told of

AGENT_KILLED = "agent-killed"


def agent_is_gone(run_dir: Path) -> bool:
    """Whether this node's agent has begun, and lives no more."""
    from rltrace.trace.liveness import began_at  # agents, who import this module, need it not

    pid = told_by_agent(run_dir).get("pid")
    return isinstance(pid, int) and began_at(pid) is None


def note_killed_agent(run_dir: Path) -> str:
    """Of a run that is not over: writes down among its problems that this node's agent was killed.
    Returns what that means, or nothing where it lives. Errors: OSError, `RltraceError`."""
    if not agent_is_gone(run_dir):
        return ""
    run = read_run_json(str(run_dir))
    lacks = "its devices were not read any more"
    problem = {"what": AGENT_KILLED, "real_ns": now_ns(run), "target": node_id(), "detail": lacks}
    # Into the agent's own file: what has another name is not shipped.
    found = (run_dir / PROCESS).glob(f"*-{told_by_agent(run_dir).get('pid')}-*.json")
    who = next((path.stem for path in sorted(found)), "agent")
    append_line(str(run_dir / PROBLEMS / f"{who}.jsonl"), problem)
    return f"the agent of this node was killed before the job ended: since then {lacks}"


def told_by_agent(run_dir: Path) -> dict[str, Any]:
    """What this node's agent says of itself; empty where it has only begun."""
    return told_in(run_dir / NODES / f"{node_id()}.json")
