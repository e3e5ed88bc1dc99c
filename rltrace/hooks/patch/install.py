"""Puts hooks in place as modules are imported; tells which could not be.

Hooks come from adapters, loaded when their framework is first imported, and the command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from rltrace.hooks import recorder as recording
from rltrace.hooks.boot import HOOKS_VARIABLE
from rltrace.hooks.hook import Adapter, Hook
from rltrace.hooks.import_finder import ImportFinder
from rltrace.hooks.launch_info import Program
from rltrace.hooks.patch import call_observer
from rltrace.hooks.patch.call_observer import Observer
from rltrace.hooks.patch.safe_repr import describe
from rltrace.hooks.patch.wrapping import (
    Patch,
    Unwrappable,
    observers,
    replacement,
    static_attribute,
)
from rltrace.hooks.recorder import problem
from rltrace.trace.errors import did_you_mean
from rltrace.trace.job_exceptions import contained, from_outside
from rltrace.trace.read.framework_figure import satisfies

MAIN = "__main__"
_REMOTE = {("ray.actor", "ActorClass"), ("ray.remote_function", "RemoteFunction")}


class Installation:
    """The hooks of this process; forked children inherit them."""

    def __init__(self, finder: ImportFinder, running: Program) -> None:
        self.finder = finder
        self._running = running
        self.patches: list[Patch] = []
        self.adapters: list[Adapter] = []
        self.hooks: list[Hook] = []
        self._resolved: set[int] = set()
        self._versions: dict[str, str] = {}
        self._user_hooks: set[str] = set()
        self._users: dict[int, Hook] = {}
        self._in_place: list[str] = []

    def load_adapter(self, framework: str, target: str) -> None:
        """Imports an adapter (`"module:Class"`) and puts its hooks in place."""

        def failed(error: Exception) -> None:
            problem("adapter-failed", target=target, detail=f"{framework}: {describe(error)}")

        module_name, _, class_name = target.partition(":")
        with contained(tell=failed):
            adapter: Adapter = getattr(import_module(module_name), class_name)()
            self.add_adapter(adapter)

    def add_adapter(self, adapter: Adapter) -> None:
        self.adapters.append(adapter)
        for hook in adapter.hooks:
            self.add(hook, adapter.framework)
        self.finder.after(adapter.framework, partial(self._framework_imported, adapter))

    def add_user_hooks(self, entries: Iterable[str]) -> None:
        """Puts hooks from the command line in place: `"module:qualname=stage"`."""
        for entry in entries:
            if entry in self._user_hooks:
                continue
            self._user_hooks.add(entry)
            target, _, stage = entry.partition("=")
            hook = Hook(target, stage or "other")
            self._users[id(hook)] = hook
            self.add(hook)

    def main_hooks(self) -> list[Hook]:
        """The hooks that may be in the main program, those of the command line included."""
        entries = os.environ.get(HOOKS_VARIABLE, "").split(";")
        self.add_user_hooks(entry for entry in entries if ":" in entry)
        return self.hooks

    def add(self, hook: Hook, framework: str = "") -> None:
        try:
            targets = hook.targets
            Observer(hook)  # a stage that is no word is told at once, not at the first call
        except ValueError as error:
            if from_outside(error):
                raise
            stage = str(hook.stage_word)
            problem("hook-failed", target=hook.target, stage=stage, detail=str(error))
            return
        if hook.is_for_probes and call_observer.kind is None:
            return
        self.hooks.append(hook)
        modules = {name for name, _ in targets}
        main = self._running.name
        if self._running.kind == "module" and {main, f"{main}.__main__"} & modules:
            from rltrace.hooks.patch.main_module import watch_main  # needs this module

            watch_main(self.finder, self._running, modules)
        for module_name, qualname in targets:
            if module_name != MAIN:
                resolve = partial(self._imported, hook, framework, qualname)
                self.finder.after(module_name, resolve)

    def undo(self) -> None:
        while self.patches:
            self.patches.pop().undo()
        self._resolved.clear()

    def patch(self, owner: Any, name: str, hook: Hook) -> None:
        """Hooks `owner.name`, unless this hook is there already. Errors: `AttributeError`."""
        self._resolved.add(id(hook))
        present, _ = static_attribute(owner, name)
        if is_on(present, hook):
            return
        try:
            self.patches.append(Patch(owner, name, Observer(hook)))
            self._placed(hook)
        except Unwrappable as error:
            self.refused(hook, str(error))
        except (AttributeError, TypeError) as error:
            if from_outside(error):
                raise
            self.refused(hook, f"cannot be replaced: {describe(error)}")

    def decorate(self, function: Any, hook: Hook) -> Any:
        """`function` with the hook around it; itself where that is impossible."""
        if is_remote(function) or is_on(function, hook):
            return function
        try:
            hooked = replacement(function, Observer(hook))
        except Unwrappable as error:
            self.refused(hook, str(error))
            return function
        self._placed(hook)
        return hooked

    def observer(self, target: str, stage: str) -> Observer | None:
        """What records a user's hook in a function that came as a copy, if there is one."""
        for hook in self.main_hooks():
            if id(hook) in self._users and (hook.target, hook.stage_word) == (target, stage):
                self._placed(hook)
                return Observer(hook)
        return None

    def _placed(self, hook: Hook) -> None:
        """Says in the process's file that a user's hook is in place."""
        if id(hook) not in self._users or hook.target in self._in_place:
            return
        self._in_place.append(hook.target)
        recorder = recording.active()
        if recorder is not None:
            recorder.describe(hooks=list(self._in_place))

    def found(self, hooks: Iterable[Hook]) -> None:
        self._resolved.update(id(hook) for hook in hooks)

    def refused(self, hook: Hook, why: str) -> None:
        """Tells that a hook's target cannot be hooked; a user can name another, so at once."""
        self._resolved.add(id(hook))
        stage = hook.stage_word
        problem("hook-failed", target=hook.target, stage=stage, detail=why)
        if id(hook) in self._users and os.environ.get("LOCAL_RANK", "0") == "0":
            recording.to_stderr(f"--hook {hook.target}={stage} cannot be put in place: it {why}")

    def missing(self, hook: Hook, looked_for: str, known: Iterable[str] = ()) -> None:
        """Tells that a hook has no target, unless another of its targets may still come; of a
        user's what is `known` that is called alike."""
        if id(hook) in self._resolved or hook.optional:
            return
        if any(name not in sys.modules and may_exist(name) for name, _ in hook.targets):
            return
        leaf = looked_for.partition(" ")[0].rpartition(".")[2]
        near = did_you_mean(leaf, *known) if id(hook) in self._users else ""
        said = {"stage": hook.stage_word, "detail": f"no {looked_for}{near}"}
        problem("hook-missing", target=hook.target, **said)

    def _imported(self, hook: Hook, framework: str, qualname: str, module: Any) -> None:
        if not satisfies(self._version_of(framework), hook.versions):
            return
        *path, leaf = qualname.split(".")
        owner = module
        looked_for = module.__name__
        with contained(AttributeError):
            for part in path:
                looked_for = f"{part} in {looked_for}"
                owner = getattr(owner, part)
                if is_remote(owner):
                    inside = getattr(owner, "__ray_metadata__", None)
                    inside = getattr(inside, "modified_class", None)  # where Ray tells
                    if inside is None or any(leaf in vars(base) for base in inside.__mro__):
                        self._resolved.add(id(hook))  # hooked where Ray loads it
                    else:
                        self.missing(hook, f"{leaf} in {looked_for}")
                    return
            looked_for = f"{leaf} in {looked_for}"
            raw, _ = static_attribute(owner, leaf)
            if is_remote(raw):
                self._resolved.add(id(hook))
            else:
                self.patch(owner, leaf, hook)
            return
        if not any(_is_there(*target) for target in hook.targets):
            self.missing(hook, looked_for, getattr(owner, "__dict__", ()))

    def _version_of(self, framework: str) -> str:
        if framework and not self._versions.get(framework):
            self._versions[framework] = version_of(framework)
        return self._versions.get(framework, "")

    def _framework_imported(self, adapter: Adapter, module: Any) -> None:
        for hook in adapter.hooks:
            if not satisfies(self._version_of(adapter.framework), hook.versions):
                continue
            if not any(may_exist(name) for name, _ in hook.targets):
                self.missing(hook, "module " + " or ".join(name for name, _ in hook.targets))
        version = self._version_of(adapter.framework)
        if not satisfies(version, adapter.versions):
            problem(
                "version-untested",
                target=adapter.framework,
                detail=f"{version} is installed, the adapter is known to fit {adapter.versions}",
            )
        recorder = recording.active()
        if recorder is not None:
            versions = {a.framework: self._version_of(a.framework) for a in self.adapters}
            facts: dict[str, Any] = {"versions": {k: v for k, v in versions.items() if v}}
            if not adapter.is_part:
                facts["adapter"] = adapter.framework
            facts.update(adapter.describe(module) or {})
            recorder.describe(**facts)

    def of_class(self, modules: set[str], qualname: str) -> Iterator[tuple[str, Hook]]:
        """The hooks on methods of a class known under one of `modules`: (method, hook)."""
        for hook in self.hooks:
            for module, name in hook.targets:
                owner, _, method = name.rpartition(".")
                if module in modules and owner == qualname:
                    yield method, hook


def _is_there(module_name: str, qualname: str) -> bool:
    """Whether an imported module has this name; what is in a remote class, only workers know."""
    found: Any = sys.modules.get(module_name)
    for part in qualname.split("."):
        if is_remote(found):
            break
        found = getattr(found, part, None)
    return found is not None


def is_on(function: Any, hook: Hook) -> bool:
    return any(observer.hook is hook and observer.on for observer in observers(function))


def is_remote(value: Any) -> bool:
    """Whether this is a `@ray.remote` class or function: workers get a copy of what is inside."""
    return any(
        (kind.__module__, kind.__qualname__) in _REMOTE
        for kind in getattr(type(value), "__mro__", ())
    )


def version_of(framework: str) -> str:
    """`__version__` of an imported framework or a package around it, else as installed; or ""."""
    name = framework
    while name:
        found = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(found, str):
            return found
        name = name.rpartition(".")[0]
    if framework not in sys.modules:
        return ""
    from importlib.metadata import PackageNotFoundError, version  # takes 10 ms

    try:
        return version(framework.partition(".")[0])
    except PackageNotFoundError:
        return ""


def may_exist(name: str) -> bool:
    """Whether a module is imported or could be, as far as files tell."""
    return name in sys.modules or spec_of(name) is not None


def spec_of(name: str) -> ModuleSpec | None:
    """Where a module is loaded from, or would be; `None` where there are no files of it."""
    folders: Any = None
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for count, part in enumerate(parts, 1):
        module = sys.modules.get(".".join(parts[:count]))
        spec = getattr(module, "__spec__", None) or PathFinder.find_spec(part, folders)
        if spec is None:
            return None
        folders = getattr(module, "__path__", None) or spec.submodule_search_locations or ()
    return spec
