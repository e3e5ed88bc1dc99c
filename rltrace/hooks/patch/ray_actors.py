"""Hooks Ray actor classes and remote functions as a worker loads them.

`@ray.remote class X` reaches a worker pickled by value, with every method, inherited ones too,
copied onto Ray's own subclass: patching `module.X` there changes nothing. So the class that Ray's
loader returns is patched, before Ray makes the method executors from it. A hook on a base class
applies to the copies of the base's methods, not to overriding ones. What Ray does not copy
(generators, static and class methods) is patched on the class that a hook names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from rltrace.hooks import boot
from rltrace.hooks import recorder as recording
from rltrace.hooks.watch.child_exits import then
from rltrace.trace.job_exceptions import contained

if TYPE_CHECKING:
    from rltrace.hooks.patch.install import Installation

_LOADERS = ("_load_actor_class_from_gcs", "_load_actor_class_from_local")
_CLASSES = "ray actor classes"


def patch_function_manager(module: Any) -> None:
    """Patches `ray._private.function_manager`, through which a worker gets its code."""
    manager = module.FunctionActorManager
    loaded = _Loaded(boot.installation())
    found = [name for name in _LOADERS if hasattr(manager, name)]
    looks: dict[str, Callable[..., None]] = dict.fromkeys(found, loaded.actor_class)
    looks["fetch_and_register_remote_function"] = loaded.remote_function
    if hasattr(manager, "load_actor_class"):
        manager.load_actor_class = loaded.nested(manager.load_actor_class)
    looks["load_actor_class"] = loaded.own_class  # from its cache, if it has had a handle of one
    for name, look in looks.items():
        if hasattr(manager, name):
            told = partial(recording.hook_failed, _CLASSES)
            setattr(manager, name, then(getattr(manager, name), look, told))
    if not found:
        detail = "this Ray loads actor classes in a way that is not known: actors are not seen"
        recording.problem("hook-missing", target=_CLASSES, detail=detail)


class _Loaded:
    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._own = ""
        self._depth = 0

    def actor_class(self, loaded: Any, *_: Any) -> None:
        if isinstance(loaded, type):
            # What came by value may never import its framework: its adapter comes in now.
            for base in loaded.__mro__:
                parts = (getattr(base, "__module__", None) or "").split(".")
                for count in range(1, len(parts) + 1):
                    self._installation.finder.announce(".".join(parts[:count]))
            patch_actor_class(loaded, self._installation)

    def nested(self, load: Callable[..., Any]) -> Callable[..., Any]:
        """`load`, with account kept of loads inside a load."""

        @wraps(load)
        def loader(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                return load(*args, **kwargs)
            finally:
                self._depth -= 1

        return loader

    def own_class(self, loaded: Any, manager: Any, *_: Any) -> None:
        """Ray has asked for this process's actor class, the outermost load, or for a handle's."""
        if self._own or self._depth or not isinstance(loaded, type):
            return
        actor_id = _actor_id(manager)
        if actor_id is not None:
            self._own = loaded.__name__
            self._describe(loaded, actor_id)

    def remote_function(self, result: Any, manager: Any, *_: Any) -> None:
        self._installation.main_hooks()
        for key, info in list(manager._function_execution_info.items()):
            function = info.function
            module = getattr(function, "__module__", None)
            name = getattr(function, "__qualname__", None)
            if not isinstance(module, str) or not isinstance(name, str):
                continue
            for hook in self._installation.hooks:
                if (module, name) in hook.targets:
                    function = self._installation.decorate(function, hook)
            if function is not info.function:
                manager._function_execution_info[key] = info._replace(function=function)

    def _describe(self, actor_class: type, actor_id: str) -> None:
        recorder = recording.active()
        if recorder is None:
            return
        facts: dict[str, Any] = {
            "role": actor_class.__name__,
            "actor_class": actor_class.__name__,
            "actor_id": actor_id,
        }
        devices = _devices()
        if devices:
            facts["devices"] = devices
        for base in reversed(actor_class.__mro__):
            for adapter in self._installation.adapters:
                for module in _modules(base):
                    role = adapter.roles.get(f"{module}:{_written(base).__qualname__}")
                    if role is not None:
                        facts.update(role=role, adapter=adapter.framework)
        recorder.describe(**facts)


def patch_actor_class(actor_class: type, installation: Installation) -> None:
    """Hooks a class where hooks name it or one of its bases."""
    installation.main_hooks()
    mro = actor_class.__mro__
    for place, base in enumerate(mro):
        name = _written(base).__qualname__
        for method, hook in installation.of_class(_modules(base), name):
            defined = _definition(base, method, mro[place:])
            if defined is None:
                if not any(_definition(other, method, ()) for other in mro):
                    installation.missing(hook, f"{method} in {actor_class.__name__}")
                continue
            owners = [o for o in mro[: place + 1] if _definition(o, method, ()) == defined]
            for owner in owners or [base]:
                installation.patch(owner, method, hook)


def _definition(base: type, method: str, behind: tuple[type, ...]) -> Any:
    """The code of a class's function, its own or inherited, under all wrappers: copies made by
    pickling have equal ones."""
    for owner in (base, *behind):
        if method in vars(owner):
            function = vars(owner)[method]
            function = getattr(function, "__func__", function)
            while hasattr(function, "__wrapped__"):
                function = function.__wrapped__
            return getattr(function, "__code__", function)
    return None


def _written(cls: type) -> type:
    """The class as its author wrote it: Ray's subclass of it has a qualified name of its own."""
    written: type = vars(cls).get("__ray_actor_class__", cls)
    return written


def _modules(cls: type) -> set[str]:
    """Names under which hooks may know a class's module; `python -m` sends it as `__main__`."""
    module = _written(cls).__module__
    main = os.environ.get(boot.MAIN_VARIABLE)
    return {module, main, f"{main}.__main__"} if main and module == "__main__" else {module}


def _devices() -> list[str]:
    """The GPUs that Ray gave. Frameworks make Ray leave `CUDA_VISIBLE_DEVICES` alone."""
    with contained():  # this Ray keeps them elsewhere: then they are not known
        context = sys.modules["ray"].get_runtime_context()
        return [str(device) for device in context.get_accelerator_ids().get("GPU", [])]
    return []


def _actor_id(manager: Any) -> str | None:
    """Ray's id of this process's actor, or one to be; "" if Ray does not tell, None: no actor."""
    worker = getattr(manager, "_worker", None)
    if getattr(worker, "mode", 1) != 1:  # ray.WORKER_MODE
        return None
    tells = getattr(getattr(worker, "core_worker", None), "get_actor_id", None)
    actor_id = None if tells is None else tells()
    if actor_id is None:
        return ""
    return None if actor_id.is_nil() else str(actor_id.hex())
