"""How a run begins: its directory, what is measured beforehand, and the environment in which a
process is traced and brings its children in. (`closing` is the other end.)"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import rltrace
from rltrace.adapters import find_adapters
from rltrace.hooks.boot import ADAPTERS_VARIABLE, HOOKS_VARIABLE, PYTHON_VARIABLE, SITE
from rltrace.hooks.launch import launch
from rltrace.hooks.node_agent import spawn_agent
from rltrace.run.calibrate import recording_costs
from rltrace.run.location import keep_command, launch_path, place, why_unsafe
from rltrace.trace import ranks
from rltrace.trace.clock import node_id
from rltrace.trace.run_dir import CAPTURE_TOKENS, NODES, RUN_VARIABLE, RunExistsError, create_run


class Opened(NamedTuple):
    """A run for a command, and `why` it is not where it was asked for, if so. `joined`: it is that
    of another rank of the launch."""

    path: Path
    why: str
    joined: bool = False
    rank: int | None = None


def open_or_join(command: list[str], out: Path | None, **settings: Any) -> Opened:
    """As `make_run`; where a launcher has started this process as one of several ranks, the run is
    that of all: the first makes it, the others enter it. One that cannot has a run of its own."""
    told = launch()
    if told is None or told.ranks < 2 or (out is None and not told.is_known):
        return make_run(command, out, **settings)
    known, joined = {"id": told.id, "ranks": told.ranks}, set[Path]()

    def join(path: Path) -> bool:
        if path not in joined and not why_unsafe(path.parent):
            joined.update([path] if ranks.join(path, known, told.rank) else [])
        return path in joined

    where = launch_path(command, told.id) if out is None else out
    while True:
        path, why = place(command, where, join)
        if path in joined:
            return Opened(path, "", True, told.rank)
        if _made(path, command, settings, {ranks.LAUNCH: known}):
            ranks.enter(path, told.rank)
            return Opened(path, why, rank=told.rank)


def make_run(command: list[str], out: Path | None, **settings: Any) -> Opened:
    """Makes a run's directory (see `place`), its own also where other jobs want the same at this
    moment; everything that its reports need to know of the start is in it. Errors: OSError (a
    read-only or full disk, or this is not Linux)."""
    while True:
        path, why = place(command, out)
        if _made(path, command, settings, {}):
            return Opened(path, why)


def _made(path: Path, command: list[str], settings: dict[str, Any], more: dict[str, Any]) -> bool:
    """Whether the run was made there; False: another was. Errors: OSError."""
    compile_traced_modules()
    settings |= {"adapters": find_adapters(), "cores": len(os.sched_getaffinity(0))}
    if "event_cost_ns" not in settings:
        settings |= recording_costs(tokens=settings.get(CAPTURE_TOKENS) is True)
    with suppress(RunExistsError):
        create_run(str(path), command, settings, rltrace.__version__, **more)
        with suppress(OSError):  # then `rltrace experiment` asks for it
            keep_command(path, command)
        return True
    return False


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


# --- the bytecode of what runs in every traced process: compiled once, before the job starts
# Under PYTHONDONTWRITEBYTECODE, or in an editable install that was never imported, each process of
# the job would compile our modules anew, which is five times the cost of loading them.

_ROOT = Path(__file__).parent.parent
_TRACED = ("__init__.py", "trace/*.py", "hooks/*.py", "adapters/*.py")


def compile_traced_modules() -> None:
    """Writes bytecode that is missing or old; where that cannot be written, nothing happens."""
    with suppress(OSError, py_compile.PyCompileError):
        for source in (path for pattern in _TRACED for path in _ROOT.glob(pattern)):
            cached = Path(importlib.util.cache_from_source(str(source)))
            if not cached.exists() or cached.stat().st_mtime < source.stat().st_mtime:
                py_compile.compile(str(source), doraise=True)
