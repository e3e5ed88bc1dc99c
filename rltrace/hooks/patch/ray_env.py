"""Gives the run's environment to workers of a joined Ray cluster.

Workers inherit the environment of the node that starts them, not the driver's, so what has to reach
them travels in the job's runtime environment, only of a driver that joins a cluster: a worker with
one cannot be started ahead of time. `RAY_RUNTIME_ENV_HOOK` is left to the user: a driver that can't
import what it names fails, and it outlives the processes that we know.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

from rltrace.hooks.boot import CARRIED, DETACHED_VARIABLE, SITE
from rltrace.hooks.recorder import hook_failed
from rltrace.trace.job_exceptions import contained

_HOOK_VARIABLE = "RAY_RUNTIME_ENV_HOOK"
_PATH = "PYTHONPATH"
_current = threading.local()
_told = partial(hook_failed, "ray.init")


def merged(runtime_env: Any, joining: bool = True) -> Any:
    """A runtime environment with the run's variables beside the user's. A cluster that the job
    starts (not `joining`) inherits these: only a `PYTHONPATH` of the user's is completed."""
    variables: Mapping[str, str] = (runtime_env or {}).get("env_vars") or {}
    if not joining and _PATH not in variables:
        return runtime_env
    added = {name: os.environ[name] for name in CARRIED if name in os.environ}
    path = variables.get(_PATH, "${PYTHONPATH}")
    if SITE not in path.split(os.pathsep):
        path = SITE + os.pathsep + path
    env = dict(runtime_env or {})
    env["env_vars"] = {**(added if joining else {}), **variables, _PATH: path}
    return env


def patch_init(worker: Any) -> None:
    """Patches `ray._private.worker`: `init`, and where it lets runtime environments be changed."""
    modify = getattr(worker, "_maybe_modify_runtime_env", None)
    if modify is not None:

        @wraps(modify)
        def maybe_modify(runtime_env: Any, *args: Any, **kwargs: Any) -> Any:
            return _with_ours(modify(runtime_env, *args, **kwargs))

        worker._maybe_modify_runtime_env = maybe_modify
    original = worker.init

    @wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        with contained(tell=_told):
            address = args[0] if args else kwargs.get("address")
            if address is None or address == "auto":  # decided as Ray does
                address = os.environ.get("RAY_ADDRESS") or address
            if address is not None and "://" in address:
                kwargs["runtime_env"] = merged(kwargs.get("runtime_env"))
            else:
                _current.joining = _joins(worker, address, kwargs.get("_temp_dir"))
                _current.job_config = kwargs.get("job_config")
        try:
            if modify is None and getattr(_current, "joining", False):
                return _init_through_hook(original, args, kwargs)
            return original(*args, **kwargs)
        finally:
            vars(_current).clear()

    worker.init = init


def patch_actor_options(utils: Any) -> None:
    """Patches `ray._private.utils`: an actor or task may have a `PYTHONPATH` of its own."""
    original = getattr(utils, "parse_runtime_env_for_task_or_actor", None)
    if original is None:
        return

    @wraps(original)
    def parse(runtime_env: Any, *args: Any, **kwargs: Any) -> Any:
        with contained(tell=_told):
            if isinstance(runtime_env, dict):
                runtime_env = merged(runtime_env, joining=False)
        return original(runtime_env, *args, **kwargs)

    utils.parse_runtime_env_for_task_or_actor = parse


def patch_job_client(sdk: Any) -> None:
    """Patches `JobSubmissionClient.submit_job`, which `ray job submit` calls too."""
    original = sdk.JobSubmissionClient.submit_job

    @wraps(original)
    def submit_job(self: Any, *args: Any, **kwargs: Any) -> Any:
        with contained(tell=_told):
            env = merged(kwargs.get("runtime_env"))
            env["env_vars"][DETACHED_VARIABLE] = "1"
            kwargs["runtime_env"] = env
        return original(self, *args, **kwargs)

    sdk.JobSubmissionClient.submit_job = submit_job


def runtime_env_hook(runtime_env: Any) -> Any:
    """A `RAY_RUNTIME_ENV_HOOK`, set while `init` runs, for a Ray that offers no other place."""
    chained = getattr(_current, "chained", None)
    if chained:
        from importlib import import_module

        module, _, name = chained.rpartition(".")
        runtime_env = getattr(import_module(module), name)(runtime_env)
    return _with_ours(runtime_env)


def _with_ours(runtime_env: Any) -> Any:
    with contained(tell=_told):
        own = runtime_env
        if not own:
            # Ray replaces the job config's environment by what it gets here, if that is not empty.
            own = getattr(getattr(_current, "job_config", None), "runtime_env", None)
        changed = merged(own, getattr(_current, "joining", False))
        return runtime_env if changed is own else changed
    return runtime_env


def _init_through_hook(
    original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    _current.chained = os.environ.get(_HOOK_VARIABLE)
    os.environ[_HOOK_VARIABLE] = f"{__name__}.{runtime_env_hook.__name__}"
    try:
        return original(*args, **kwargs)
    finally:
        if _current.chained is None:
            os.environ.pop(_HOOK_VARIABLE, None)
        else:
            os.environ[_HOOK_VARIABLE] = _current.chained


def _joins(worker: Any, address: str | None, temporary: str | None) -> bool:
    """Whether `ray.init` will join a cluster (True) or start one."""
    if address == "local":
        return False
    if address not in (None, "auto"):
        return True
    services = worker.services
    services.find_gcs_addresses.cache_clear()
    with contained():  # there is none: Ray will say so itself
        return services.canonicalize_bootstrap_address(address, temporary) is not None
    return False
