"""How a run begins: its directory, what is measured beforehand, and the environment in which a
process is traced and brings its children in. (`closing` is the other end.)"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import rltrace
from rltrace.adapters import find_adapters
from rltrace.hooks.boot import ADAPTERS_VARIABLE, HOOKS_VARIABLE, PYTHON_VARIABLE, SITE
from rltrace.hooks.node_agent import spawn_agent
from rltrace.run.bytecode import compile_traced_modules
from rltrace.run.calibrate import recording_costs
from rltrace.run.location import free_path, keep_command
from rltrace.trace.clock import node_id
from rltrace.trace.run_dir import CAPTURE_TOKENS, NODES, RUN_VARIABLE, RunExistsError, create_run

ONLY_ON = "linux"
WHY_ONLY = "recording needs Linux; elsewhere runs are only read"


def make_run(command: list[str], out: Path | None, **settings: Any) -> Path:
    """Makes a run's directory (see `free_path`), its own also where other jobs want the same at
    this moment; everything that its reports need to know of the start is in it. Errors: OSError (a
    read-only or full disk, or this is not Linux)."""
    if sys.platform != ONLY_ON:
        raise OSError(WHY_ONLY)
    compile_traced_modules()
    settings |= {"adapters": find_adapters(), "cores": len(os.sched_getaffinity(0))}
    settings |= recording_costs(tokens=settings.get(CAPTURE_TOKENS) is True)
    while True:
        path = free_path(command, out)
        with suppress(RunExistsError):
            create_run(str(path), command, settings, rltrace.__version__)
            with suppress(OSError):  # then `rltrace experiment` asks for it
                keep_command(path, command)
            return path


def why_elsewhere(out: Path | None, path: Path) -> str:
    """Why a run was not made in `out`; empty where it was."""
    if out is None or path == out.absolute():
        return ""
    beside = path.parent == out.absolute().parent
    return f"{out} holds a run already" if beside else f"{out} is not empty and no run"


def start_agent(path: Path) -> None:
    """Starts this node's agent for the run, unless somebody has."""
    spawn_agent(str(path), str(agent_lock(path)), sys.executable)


def agent_lock(path: Path) -> Path:
    """The file whose maker starts this node's agent for the run."""
    return path / NODES / f"{node_id()}.lock"


def traced_environment(run_dir: str, hooks: Sequence[str]) -> dict[str, str]:
    """This process's environment with the run in it. `hooks` are added to those of an outer run."""
    environment = dict(os.environ)
    environment[RUN_VARIABLE] = run_dir
    environment[PYTHON_VARIABLE] = sys.executable
    environment[ADAPTERS_VARIABLE] = ";".join(f"{k}={v}" for k, v in find_adapters().items())
    known = [h for h in environment.get(HOOKS_VARIABLE, "").split(";") if h]
    environment[HOOKS_VARIABLE] = ";".join([*known, *(h for h in hooks if h not in known)])
    path = environment.get("PYTHONPATH", "")
    if SITE not in path.split(os.pathsep):
        environment["PYTHONPATH"] = SITE + (os.pathsep + path if path else "")
    return environment
