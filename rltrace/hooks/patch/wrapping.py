"""Replaces a function by one that records its calls, and undoes it.

The replacement keeps what callers can see: parameters and their defaults, `__wrapped__`, the kind
of function (coroutine functions, generators and async generators stay what they are), results and
exceptions. `Observer.__reduce__` says what becomes of one that is sent to another process by value.
"""

from __future__ import annotations

import copy
import functools
import types
from typing import TYPE_CHECKING, Any

from rltrace.hooks.null_api import COMPILED_AS, told_when_compiled
from rltrace.hooks.patch.wrapper_code import replacement_of
from rltrace.trace.job_exceptions import contained

if TYPE_CHECKING:
    from rltrace.hooks.patch.call_observer import Observer

MARK = "__rltrace__"  # a replacement's observer (`None` in a copy that only passes on)
_CO_GENERATOR = 0x20
_CO_COROUTINE = 0x80
_CO_ITERABLE_COROUTINE = 0x100
_CO_ASYNC_GENERATOR = 0x200

_FUNCTIONS = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


class Unwrappable(TypeError):
    """Replacing the target would change the program."""


class Patch:
    __slots__ = ("_inherited", "_original", "_replacement", "name", "observer", "owner")

    def __init__(self, owner: Any, name: str, observer: Observer) -> None:
        """Replaces `owner.name`. Errors: `AttributeError` when there is none, `Unwrappable`."""
        self.owner = owner
        self.name = name
        self.observer = observer
        self._original, self._inherited = static_attribute(owner, name)
        self._replacement = replacement(self._original, observer)
        if isinstance(owner, type) and not hasattr(type(self._original), "__get__"):
            # The original does not bind to instances, so ours must not either.
            self._replacement = staticmethod(self._replacement)
        if hasattr(self._replacement, "__set_name__"):
            self._replacement.__set_name__(owner, name)
        setattr(owner, name, self._replacement)

    def undo(self) -> None:
        """Stops recording, puts the original back; one wrapped meanwhile only passes on."""
        self.observer.on = False
        if vars(self.owner).get(self.name) is not self._replacement:
            return
        if self._inherited:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self._original)


def static_attribute(owner: Any, name: str) -> tuple[Any, bool]:
    """An attribute as stored, and whether it is inherited. Errors: `AttributeError`."""
    for base in (owner, *owner.__mro__) if isinstance(owner, type) else (owner,):
        if name in vars(base):
            return vars(base)[name], base is not owner
    return getattr(owner, name), True


def observers(function: Any) -> list[Observer]:
    """The observers that record a function's calls, also those of what it wraps."""
    found = []
    for _ in range(64):
        if _is_endpoint(function):
            function = function._method
        function = getattr(function, "__func__", None) or getattr(function, "fget", function)
        observer = getattr(function, "__dict__", {}).get(MARK)
        if observer is not None and observer.hook.target and observer not in found:
            found.append(observer)
        inner = getattr(function, "__wrapped__", None)
        if inner is None:
            break
        function = inner
    return found


def replacement(raw: Any, observer: Observer) -> Any:
    """What stands for an attribute, of the same kind. Errors: `Unwrappable`."""
    if isinstance(raw, staticmethod):
        return staticmethod(wrap(raw.__func__, observer))
    if isinstance(raw, classmethod):
        return classmethod(wrap(raw.__func__, observer))
    if isinstance(raw, property):
        if raw.fget is None:
            raise Unwrappable("is a property that cannot be read")
        return property(wrap(raw.fget, observer), raw.fset, raw.fdel, raw.__doc__)
    if isinstance(raw, functools.cached_property):
        return functools.cached_property(wrap(raw.func, observer))
    if _is_endpoint(raw):
        endpoint = copy.copy(raw)
        endpoint._method = wrap(raw._method, observer)
        return endpoint
    return wrap(raw, observer)


def _is_endpoint(raw: Any) -> bool:
    """Whether it is of Monarch's `@endpoint`: an object that the mesh calls through."""
    return type(raw).__name__ == "EndpointProperty" and hasattr(raw, "_method")


def wrap(function: Any, observer: Observer) -> Any:
    """A function that calls `function` and has each call recorded. Errors: `Unwrappable`."""
    if isinstance(function, type):
        raise Unwrappable("is a class: name one of its methods, such as __init__")
    if not isinstance(function, _FUNCTIONS) and "function" not in type(function).__name__:
        kind = type(function)
        cached = kind is functools._lru_cache_wrapper
        name = "functools.lru_cache" if cached else kind.__qualname__
        raise Unwrappable(f"is a {name}, not a function: name what it calls instead")
    if isinstance(function, types.MethodType) and _managed_beneath(function.__func__):
        return types.MethodType(wrap(function.__func__, observer), function.__self__)
    beneath = _coroutine_beneath(function)
    if beneath is None and (beneath := _managed_beneath(function)) is not None:
        observer.per_item = False
    if beneath is not None:
        return _around(function, beneath, wrap(beneath.cell_contents, observer))
    return stand_in(function, observer)


def stand_in(function: Any, observer: Observer) -> Any:
    """A function for `function`, of which each call is recorded. Errors: `Unwrappable`."""
    observer.function = function
    kind = _kind(function, observer)
    hook = observer.hook
    tells = bool(hook.before or hook.after or hook.step or hook.stream is not None)
    tells, keeps = tells or callable(hook.stage), bool(hook.after)
    wrapper = replacement_of(function, kind, observer, tells, keeps)
    functools.update_wrapper(wrapper, function)
    wrapper.__dict__[MARK] = observer
    if not _flags(function) & (_CO_COROUTINE | _CO_ASYNC_GENERATOR):
        twin = replacement_of(function, "twin", told_when_compiled(observer))
        wrapper.__dict__[COMPILED_AS] = functools.update_wrapper(twin, function)
    return wrapper


def _kind(function: Any, observer: Observer) -> str:
    """How a function is replaced. Errors: `Unwrappable`."""
    flags = _flags(function)
    if flags & _CO_ITERABLE_COROUTINE:
        raise Unwrappable("is a generator-based coroutine")
    if observer.hook.stream is not None:
        return "stream"
    told = "plain" if observer.is_plain else "told"
    if flags & _CO_COROUTINE:
        return "delayed coroutine" if observer.delays else f"{told} coroutine"
    if flags & _CO_GENERATOR:
        return "items" if observer.per_item else f"{told} iteration"
    if flags & _CO_ASYNC_GENERATOR:
        return "async items" if observer.per_item else "async iteration"
    return told


def _flags(function: Any) -> int:
    flags: int = getattr(getattr(function, "__code__", None), "co_flags", 0)
    return flags


def _coroutine_beneath(function: Any) -> types.CellType | None:
    """Where a decorated function that is no coroutine function keeps the one that it wraps: nothing
    may come between it and its caller, whom it may look at (verl's `auto_await` does)."""
    inner = getattr(function, "__wrapped__", None)
    if inner is None or not isinstance(function, types.FunctionType):
        return None
    if _flags(function) & (_CO_COROUTINE | _CO_GENERATOR | _CO_ASYNC_GENERATOR):
        return None
    if not (_flags(inner) & _CO_COROUTINE or _coroutine_beneath(inner)):
        return None
    return _cell_of(function, inner)


def _managed_beneath(function: Any) -> types.CellType | None:
    """Where `contextlib` keeps a context manager's generator function: a call is the `with`."""
    inner = getattr(function, "__wrapped__", None)
    if not isinstance(function, types.FunctionType) or not isinstance(inner, types.FunctionType):
        return None
    if function.__globals__.get("__name__") != "contextlib":
        return None
    return _cell_of(function, inner)


def _cell_of(function: types.FunctionType, inner: Any) -> types.CellType | None:
    for cell in function.__closure__ or ():
        with contained(ValueError):  # an empty cell
            if cell.cell_contents is inner:
                return cell
    return None


def _around(function: types.FunctionType, beneath: types.CellType, hooked: Any) -> Any:
    cells = [types.CellType(hooked) if c is beneath else c for c in function.__closure__ or ()]
    again = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells),
    )
    again.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(again, function)
    again.__wrapped__ = hooked  # type: ignore[attr-defined]
    return again
