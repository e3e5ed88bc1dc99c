"""Completing `run.json` when a run is over: its end, its exit code, and the framework it used."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rltrace.hooks.hook import split_target
from rltrace.hooks.idle import INSIDE
from rltrace.trace.errors import RltraceError
from rltrace.trace.run_dir import (
    NAMES,
    PROBLEMS,
    PROCESS,
    RUN_FILE,
    now_ns,
    read_run_json,
    update_run_json,
)
from rltrace.trace.vocabulary import STEP_SPAN


def close_run(run_dir: Path, exit_code: int | None) -> None:
    """Writes the end of a run; `exit_code` is `None` when nobody saw it. Errors: OSError,
    `RltraceError`."""
    ended_ns = now_ns(read_run_json(str(run_dir)))
    update_run_json(str(run_dir), end_real_ns=ended_ns, exit_code=exit_code, **_framework(run_dir))


def is_gone(run_dir: Path) -> bool:
    """Whether the directory of this process's run was deleted, and maybe another run made there."""
    if not (run_dir / RUN_FILE).exists():
        return True
    with suppress(RltraceError):  # said when the run is completed
        return read_run_json(str(run_dir)).get("wrap_pid") != os.getpid()
    return False


def job_processes(run_dir: Path) -> list[dict[str, Any]]:
    """The process files of a run, those of the agents left out. Errors: OSError."""
    found = []
    for path in (run_dir / PROCESS).glob("*.json"):
        try:
            process = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue  # reading the run reports it
        if isinstance(process, dict) and process.get("role") != "agent":
            found.append(process)
    return found


def what_hooks_missed(run_dir: Path, hooks: Sequence[str]) -> list[str]:
    """A sentence for each of the user's hooks (`"module:qualname=stage"`) that recorded nothing.
    Errors: OSError."""
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
