"""Starts recording in every Python process of a traced job.

Both carriers (`rltrace/hooks/site/sitecustomize.py` and the wheel's `rltrace.pth`) call `boot`;
doing so twice is harmless. It starts the recorder and a finder, which brings in the rest only when
a framework that we hook is imported. Every process pays for every import here, so there are few.
"""

from __future__ import annotations

import os
import sys
from _functools import partial  # type: ignore[import-not-found]
from _signal import SIGURG  # type: ignore[import-not-found]  # `signal` imports enum

from rltrace.hooks import recorder as recording
from rltrace.hooks.import_finder import ImportFinder
from rltrace.hooks.launch_info import Program, launch, program
from rltrace.hooks.spans import watch_asyncio
from rltrace.trace.clock import node_id
from rltrace.trace.job_exceptions import contained, from_outside
from rltrace.trace.run_dir import NODES, RUN_FILE, RUN_VARIABLE, STACKS
from rltrace.trace.safe_open import opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ADAPTERS_VARIABLE = "RLTRACE_ADAPTERS"  # the adapters as `framework=module:Class`, joined by `;`
HOOKS_VARIABLE = "RLTRACE_HOOKS"  # the user's hooks as `module:qualname=stage`, joined by `;`
PYTHON_VARIABLE = "RLTRACE_PYTHON"  # the interpreter of `wrap`; node agents use it too
MAIN_VARIABLE = "RLTRACE_MAIN"  # the module that the driver runs as `__main__` (`python -m`)
DETACHED_VARIABLE = "RLTRACE_DETACHED"
"""Set for a job handed to a cluster: it may outlive the command that submitted it, and the run."""

PROBE_VARIABLE = "RLTRACE_PROBE"  # the design of the probe (`rltrace.hooks.probe.delays`), if any
LOG_STEPS_VARIABLE = "RLTRACE_LOG_STEPS"  # set where the job logs figures of steps (`wandb_rows`)
SYNC_VARIABLE = "RLTRACE_SYNC"
"""What brings weights through rltrace.sync where a framework has its own way, as `module of the
framework=package.module:function`, joined by `;` (`wrap --sync`)."""

SHIP_VARIABLE = "RLTRACE_SHIP"
"""Node and host where the run was made, and its URL, with spaces between, if it is shipped."""

CAPTURE_VARIABLE = "RLTRACE_CAPTURE_TOKENS"  # set where token ids of samples are recorded
OWN_VARIABLES = (PROBE_VARIABLE, LOG_STEPS_VARIABLE, SYNC_VARIABLE, SHIP_VARIABLE, CAPTURE_VARIABLE)
"""Variables of a run that no other run takes over."""

CARRIED = (
    *(RUN_VARIABLE, ADAPTERS_VARIABLE, HOOKS_VARIABLE, PYTHON_VARIABLE, MAIN_VARIABLE),
    *OWN_VARIABLES,
)
"""What a process that inherits no environment has to be given, beside `PYTHONPATH`."""

STACK_SIGNAL: int = SIGURG
"""Ignored by default: what takes the process's place by `exec` is not ended by it."""

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
"""The folder that goes first on `PYTHONPATH`."""

# Processes that belong to a tool and run nothing of the job: no file is left for them. Those that
# start further processes of the job (`ray start`, the shim that becomes a Ray worker) keep the run
# in their environment, the others hand nothing on.
_RAY = "/ray/"
_SCRIPTS = {
    "silent": (
        "dashboard/dashboard.py",
        "dashboard/agent.py",
        "_private/runtime_env/agent/main.py",
        "_private/log_monitor.py",
    ),
    "passing": (
        "_private/workers/setup_worker.py",
        "autoscaler/_private/monitor.py",
        "autoscaler/v2/monitor.py",
        "_private/ray_process_reaper.py",
        "_private/process_watcher.py",
    ),
}
_TOOLS = {
    "silent": {"pip", "pip3", "virtualenv", "venv", "ensurepip"},
    "passing": {"rltrace", "ray.util.client.server"},
    "submits": {"ray", "ray.scripts.scripts"},
}

RAY_WORKER = "_private/workers/default_worker.py"
"""How the script of a Ray worker ends; `__main__` there is nobody's of the job."""

# What is done to modules as they are imported: by which function of ours, loaded only then.
_RAY_PATCHES = (
    ("ray._private.function_manager", "patch.ray_actors:patch_function_manager"),
    ("ray.exceptions", "patch.ray_ends:watch_errors"),
    ("ray._private.worker", "patch.ray_env:patch_init"),
    ("ray._private.worker", "patch.ray_ends:watch_kill"),
    ("ray._private.utils", "patch.ray_env:patch_actor_options"),
    ("ray.dashboard.modules.job.sdk", "patch.ray_env:patch_job_client"),
)
_PATCHES = (
    ("threading", "watch.child_exits:watch_threads"),
    ("subprocess", "watch.child_exits:watch_subprocess"),
    ("multiprocessing.popen_fork", "watch.child_exits:watch_multiprocessing"),
    ("multiprocessing.util", "watch.child_exits:watch_exits"),
)
_LOG_PATCHES = (("wandb.sdk.wandb_run", "patch.wandb_rows:patch"),)

_booted = False


def boot() -> None:
    """Starts recording in this process if it belongs to a run. Never raises."""
    global _booted
    run_dir = os.environ.get(RUN_VARIABLE)
    if _booted or not run_dir:
        return
    _booted = True
    with contained(tell=_not_traced):
        _boot(run_dir)


def _not_traced(error: Exception) -> None:
    said = f"process {os.getpid()} is not traced: {type(error).__name__}: {error}"
    recording.to_stderr(f"{said}; the job goes on")


def installation() -> Any:
    """The hooks of this process (an `Installation`), made when first needed."""
    global _installation
    if _installation is None:
        from rltrace.hooks.patch.install import Installation

        assert _finder is not None
        _installation = Installation(_finder, program(sys.orig_argv))
    return _installation


def observer(target: str, stage: str) -> Any:
    """What records a user's hook in a copy of a hooked function; `None`: nothing does."""
    if _finder is not None and recording.active() is not None:
        with contained(tell=partial(recording.hook_failed, target)):
            return installation().observer(target, stage)
    return None


_finder: ImportFinder | None = None
_installation: Any = None


def _boot(run_dir: str) -> None:
    global _finder
    running = program(sys.orig_argv)
    part = _part(running)
    if part == "silent":
        os.environ.pop(RUN_VARIABLE, None)
    if part in ("silent", "passing"):
        return
    if SHIP_VARIABLE in os.environ and not os.path.exists(f"{run_dir}/{RUN_FILE}"):
        from rltrace.hooks.node_setup import own_directory

        detached = DETACHED_VARIABLE in os.environ
        run_dir = own_directory(run_dir, os.environ[SHIP_VARIABLE], detached)
    if _is_over(run_dir):
        os.environ.pop(RUN_VARIABLE, None)
        return
    if part == "records":
        is_ray_worker = running.name.endswith(RAY_WORKER)  # told its place when it gets an actor
        facts = {} if is_ray_worker else _place()
        if ":" in os.environ.get(HOOKS_VARIABLE, ""):
            facts["hooks"] = []  # those in place so far
        if os.environ.get(CAPTURE_VARIABLE):
            from rltrace.hooks import token_capture

            token_capture.start()
        if recording.start(run_dir, stacks=_offer_stacks(run_dir), **facts) is None:
            os.environ.pop(RUN_VARIABLE, None)  # said once; the children need not say it again
            return
        _start_agent(run_dir)
        if os.environ.get(PROBE_VARIABLE):
            from rltrace.hooks.probe import probing

            probing.start(run_dir, os.environ[PROBE_VARIABLE])
        if running.kind == "module":
            os.environ[MAIN_VARIABLE] = running.name
        elif not is_ray_worker:
            os.environ.pop(MAIN_VARIABLE, None)
    _finder = ImportFinder(recording.hook_failed)
    sys.meta_path.insert(0, _finder)
    _watch(_finder, _RAY_PATCHES)
    if part == "records":
        _watch(_finder, _PATCHES)
        _finder.after("asyncio", lambda _: watch_asyncio())
        for module, target in _entries(SYNC_VARIABLE, "="):
            _finder.after(module, partial(_replace, target))  # hooks go around what is there then
        for framework, target in _entries(ADAPTERS_VARIABLE, "="):
            _finder.before(framework, partial(_load_adapter, framework, target))
        _watch_user_hooks(_finder, running)
        if os.environ.get(LOG_STEPS_VARIABLE):
            _watch(_finder, _LOG_PATCHES)


def _entries(variable: str, sign: str) -> Iterator[tuple[str, str]]:
    """What stands before and behind the sign, of each entry of a variable that has one."""
    for entry in os.environ.get(variable, "").split(";"):
        before, found, behind = entry.partition(sign)
        if found:
            yield before, behind


def _watch(finder: ImportFinder, patches: tuple[tuple[str, str], ...]) -> None:
    for module, target in patches:
        finder.after(module, partial(_call, f"rltrace.hooks.{target}"))


def _call(target: str, module: Any) -> None:
    """Gives a module, just imported, to a function (`module:function`) that changes it."""
    name, _, function = target.partition(":")
    getattr(__import__(name, fromlist=[function]), function)(module)


def _replace(target: str, module: Any) -> None:
    try:
        _call(target, module)
    except Exception as error:
        if not from_outside(error):
            said = f"--sync: {target}: {error}; {module.__name__} keeps its own way"
            recording.to_stderr(f"{said}; the job goes on")
        raise


def _load_adapter(framework: str, target: str) -> None:
    installation().load_adapter(framework, target)


def _offer_stacks(run_dir: str) -> int:
    """Has `faulthandler` write stacks of threads that get `STACK_SIGNAL` to the node's file: in C,
    without the GIL, in forked children too. The file's descriptor; -1 where that cannot be."""
    with contained(OSError, ValueError, RuntimeError):
        import faulthandler  # compiled in

        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with opened(f"{run_dir}/{STACKS}/{node_id()}.txt", flags) as file:
            kept = os.dup(file)
        faulthandler.register(STACK_SIGNAL, file=kept, all_threads=False, chain=False)
        return kept
    return -1


def _place() -> dict[str, Any]:
    """Rank and devices of this process, as far as its environment tells."""
    place: dict[str, Any] = {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = [name.strip() for name in (visible or "").split(",")]
    devices = [name for name in devices if name not in ("", "-1", "NoDevFiles")]
    told = launch()
    if told is not None:
        place["rank"] = told.rank
        if told.local >= 0 and len(devices) > 1:  # all ranks see all devices and take one each
            devices = devices[told.local : told.local + 1]
    if visible is not None:  # an empty list: it was given none
        place["devices"] = devices
    return place


def _is_over(run_dir: str) -> bool:
    """Whether the run has ended: a Ray cluster that it left may start processes for others."""
    if DETACHED_VARIABLE not in os.environ:
        with contained(OSError), open(f"{run_dir}/{RUN_FILE}", encoding="utf-8") as file:
            return '"end_real_ns":null' not in file.read().replace(" ", "")
    return False  # or the recorder will tell


def _part(running: Program) -> str:
    """What this process has to do with the run: `"records"`, `"silent"`, `"passing"`, or
    `"submits"` (the `ray` command: it may hand a job to a cluster, and records nothing)."""
    kind, name = running.kind, running.name
    if kind == "code":
        return "silent" if "resource_tracker import main" in name else "records"
    if kind == "script" and _RAY in name:
        for part, ends in _SCRIPTS.items():
            if name.endswith(ends):
                return part
    tool = name.rpartition("/")[2] if kind == "script" else name
    return next((part for part, tools in _TOOLS.items() if tool in tools), "records")


def _watch_user_hooks(finder: ImportFinder, running: Program) -> None:
    modules = {module for module, _ in _entries(HOOKS_VARIABLE, ":")}
    for module in modules - {"__main__"}:
        finder.before(module, lambda: installation().main_hooks())
    if running.name.endswith(RAY_WORKER):
        return  # what runs as `__main__` there is Ray's; the driver's code comes by value
    mine = {"__main__", running.name, running.name + ".__main__"}
    if modules & mine:
        from rltrace.hooks.patch.main_module import watch_main

        watch_main(finder, running, modules)


def _start_agent(run_dir: str) -> None:
    """Starts the node's agent, if this is the first process of a node that has none."""
    lock = f"{run_dir}/{NODES}/{node_id()}.lock"
    if not os.path.exists(lock):
        from rltrace.hooks.node_setup import spawn_agent

        spawn_agent(run_dir, lock, os.environ.get(PYTHON_VARIABLE, ""))
