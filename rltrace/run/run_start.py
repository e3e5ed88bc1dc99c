"""How a run begins: its directory, environment and agent."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rltrace import __version__
from rltrace.adapters import find_adapters
from rltrace.hooks import boot
from rltrace.hooks import recorder as recording
from rltrace.hooks.launch_info import launch
from rltrace.hooks.node_setup import spawn_agent
from rltrace.hooks.null_api import Idle
from rltrace.hooks.probe.delays import Design
from rltrace.plugins import REPLACEMENTS
from rltrace.run.run_folders import keep_command, launch_path, place, why_unsafe
from rltrace.trace import launcher_ranks
from rltrace.trace.clock import node_id
from rltrace.trace.errors import RltraceError
from rltrace.trace.metadata_validation import now_ns, read_run_json, update_run_json
from rltrace.trace.run_dir import CAPTURE_TOKENS, NODES, RUN_VARIABLE, RunExistsError, create_run


class Opened(NamedTuple):
    """A run for a command, and `why` it is not where it was asked for, if so. `joined`: it is that
    of another rank of the launch."""

    path: Path
    why: str
    joined: bool = False
    rank: int | None = None


def make_run(command: list[str], out: Path | None, **settings: Any) -> Opened:
    """Makes a run's directory (see `place`), its own also where other jobs want the same at this
    moment. The ranks of a launcher have one run: the first makes it, the others enter; one that
    cannot has its own. Errors: OSError (a read-only or full disk, or this is not Linux)."""
    told, unnamed, joined = launch(), "", set[Path]()
    if told is not None and told.ranks > 1 and out is None and not told.is_known:
        unnamed = f"the launcher of {told.ranks} ranks names no launch: --out gives all one run"
    rank, more, is_known = None, dict[str, Any](), False
    if told is not None and told.ranks > 1 and not unnamed:
        rank, is_known = told.rank, told.is_known
        more = {launcher_ranks.LAUNCH: {"id": told.id, "ranks": told.ranks}}
        out = launch_path(command, told.id) if out is None else out

    def join(path: Path) -> bool:
        if rank is not None and path not in joined and not why_unsafe(path.parent):
            joined.update([path] if launcher_ranks.join(path, more, rank, is_known) else [])
        return path in joined

    while True:
        path, why = place(command, out, join)
        if path in joined:
            return Opened(path, "", True, rank)
        if _made(path, command, settings, more):
            if rank is not None:
                launcher_ranks.enter(path, rank)
            return Opened(path, unnamed or why, rank=rank)


def _made(path: Path, command: list[str], settings: dict[str, Any], more: dict[str, Any]) -> bool:
    """Whether the run was made there; False: another was. Errors: OSError."""
    compile_traced_modules()
    settings |= {"adapters": find_adapters(), "cores": len(os.sched_getaffinity(0))}
    with suppress(RunExistsError):
        create_run(str(path), command, settings, __version__, **more)
        with suppress(OSError):  # then `rltrace experiment` asks for it
            keep_command(path, command)
        return True
    return False


def start_agent(path: Path) -> None:
    """Starts this node's agent for the run, unless somebody has."""
    spawn_agent(str(path), str(agent_lock(path)), sys.executable)


def agent_lock(path: Path) -> Path:
    return path / NODES / f"{node_id()}.lock"


def traced_environment(run_dir: str, hooks: Sequence[str]) -> dict[str, str]:
    """This process's environment with the run in it. `hooks` are added to those of an outer run."""
    known = [h for h in os.environ.get(boot.HOOKS_VARIABLE, "").split(";") if h]
    path = os.environ.get("PYTHONPATH", "")
    if boot.SITE not in path.split(os.pathsep):
        path = boot.SITE + (os.pathsep + path if path else "")
    return {
        **os.environ,
        RUN_VARIABLE: run_dir,
        boot.PYTHON_VARIABLE: sys.executable,
        boot.ADAPTERS_VARIABLE: ";".join(f"{k}={v}" for k, v in find_adapters().items()),
        boot.HOOKS_VARIABLE: ";".join([*known, *(h for h in hooks if h not in known)]),
        "PYTHONPATH": path,
    }


_ROOT = Path(__file__).parent.parent
_TRACED = ("__init__.py", "trace/*.py", "hooks/*.py", "adapters/*.py")


def compile_traced_modules() -> None:
    """Writes bytecode that is missing or old, if that can be written: else each process of the job
    would compile our modules anew, which is five times the cost of loading them."""
    with suppress(OSError, py_compile.PyCompileError):
        for source in (path for pattern in _TRACED for path in _ROOT.glob(pattern)):
            cached = Path(importlib.util.cache_from_source(str(source)))
            if not cached.exists() or cached.stat().st_mtime < source.stat().st_mtime:
                py_compile.compile(str(source), doraise=True)


@dataclass(frozen=True)
class WrapOptions:
    """`hooks` are the user's own as `"module:qualname=stage"`, `log_steps` puts the figures of
    steps into what the job logs, `ship` is the URL of a folder to which the run is shipped. Where
    nothing moves for `stuck_after_s`, `on_stuck` says what is done beside telling it: `report`
    (nothing), `kill`, or a command."""

    hooks: tuple[str, ...] = ()
    probe: Design | None = None
    live: bool = False
    log_steps: bool = False
    sync: bool = False
    ship: str | None = None
    capture_tokens: bool = False
    stuck_after_s: float | None = None
    on_stuck: str = "report"

    def settings(self) -> dict[str, Any]:
        said: dict[str, Any] = {"hooks": list(self.hooks)}
        if self.probe is not None:
            said["probe"] = self.probe.settings()
        if self.stuck_after_s is not None:
            said["stuck_after_s"] = self.stuck_after_s
        return said | {name: True for name in ("sync", CAPTURE_TOKENS) if getattr(self, name)}

    def variables(self) -> dict[str, str]:
        """What processes of the run find in their environment, but for where it is shipped to."""
        flags = {
            boot.CAPTURE_VARIABLE: self.capture_tokens,
            boot.LOG_STEPS_VARIABLE: self.log_steps,
        }
        probe = {} if self.probe is None else {boot.PROBE_VARIABLE: self.probe.text()}
        return self.replaced() | probe | {name: "1" for name, is_set in flags.items() if is_set}

    def replaced(self) -> dict[str, str]:
        """The part of it that a command within an outer run has, too."""
        return {boot.SYNC_VARIABLE: ";".join(REPLACEMENTS)} if self.sync else {}

    def left_to_the_outer_run(self) -> str:
        """Where a wrap joins the run that it is in: the options that this run alone can have."""
        names = ["probe", "live", "log_steps", "ship", "capture_tokens", "stuck_after_s"]
        names += ["on_stuck"] if self.on_stuck != "report" else []
        said = (name for name in names if getattr(self, name))
        return ", ".join(f"--{n.removesuffix('_s').replace('_', '-')}" for n in said)


_began: Opened | None = None
_environment_before: dict[str, str] = {}


def start(out: str | Path | None, objective: str | None) -> Path | None:
    path = _start(out)
    active = recording.active()
    if active is not None and objective is not None:
        active.describe(objective=str(objective), advantage=str(objective))
    return path


def _start(out: str | Path | None) -> Path | None:
    global _began, _environment_before
    active = recording.active()
    if active is not None:
        return Path(active.run_dir)
    try:
        where = Path(out) if out is not None else None
        opened = make_run(sys.orig_argv, where, started_by="rltrace.start")
    except OSError as error:
        recording.to_stderr(f"cannot record into {out or '.'}: {error}; the job goes on")
        return None
    path = opened.path
    if opened.why:
        recording.to_stderr(f"{opened.why}; this one goes to {path}")
    _environment_before = dict(os.environ)
    os.environ.update(traced_environment(str(path), ()))
    os.environ.pop(boot.CAPTURE_VARIABLE, None)  # of a run before: nobody has asked for this one's
    boot.boot()
    if recording.start(str(path)) is None:
        _restore_environment()
        return None
    start_agent(path)
    _began = opened
    if Idle.decorated:
        recording.to_stderr(
            f"{Idle.decorated} functions were decorated before rltrace.start() and stay "
            "unrecorded: start first, or run under `rltrace wrap`"
        )
    return path


def stop() -> None:
    global _began
    active = recording.active()
    if active is not None and active.open_step is not None:
        active.open_step.end()
    recording.stop()
    if _began is not None:
        _restore_environment()
        path, rank = _began.path, _began.rank
        with suppress(OSError, ValueError, RltraceError):  # it may be gone: the job goes on
            if told := {"exit_code": 0} if rank is None else launcher_ranks.leave(path, rank, 0):
                update_run_json(str(path), end_real_ns=now_ns(read_run_json(str(path))), **told)
        _began = None


def _restore_environment() -> None:
    for name in ("PYTHONPATH", *(name for name in os.environ if name.startswith("RLTRACE_"))):
        os.environ.pop(name, None)
        if name in _environment_before:
            os.environ[name] = _environment_before[name]
