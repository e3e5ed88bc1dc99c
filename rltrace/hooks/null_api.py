"""The API where nothing is recorded: no run, or inside `torch.compile`.

`torch.compile` makes one graph of all that a function calls. A call of the recorder would break the
graph, and end a `fullgraph=True` job. It follows a function's attribute `COMPILED_AS` to what it is
to trace instead, and calls a function that is marked as constant once, while it traces. So a twin
without our code stands for what records, and the report says what was not recorded.
"""

from __future__ import annotations

from _weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Api = TypeVar("Api", bound=Callable[..., Any])


COMPILED_AS = "_torchdynamo_inline"
INSIDE = "inside-torch-compile"  # the problem of what was compiled: its spans are not recorded


class Idle:
    """Stands for a span, trajectory, reward or update that nobody records."""

    __slots__ = ("__weakref__",)

    decorated = 0  # functions decorated while there was no run: they stay unrecorded
    start_ns = -1  # it has not begun

    # `with` on an object whose methods are Python functions costs 115 ns; with these two, which
    # are C callables (one returns the object itself, one a falsy value), 60 ns.
    __enter__: Callable[[], Idle]
    __exit__: Callable[..., Any] = "".format

    def set(self, *args: Any, **values: Any) -> None:
        """Does nothing."""

    end = discard = first_token = finish = set

    async def __aenter__(self) -> Idle:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        Idle.decorated += 1
        return function


IDLE = Idle()
Idle.__enter__ = ref(IDLE)  # type: ignore[assignment]  # calling a reference gives its object


class Untraced(Idle):
    """An idle object that `torch.compile` can trace: its methods are Python's."""

    __slots__ = ()

    def __enter__(self) -> Untraced:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def told_when_compiled(observer: Any) -> Callable[[], None]:
    """A function that a twin calls, once each time that the twin is compiled."""

    def told() -> None:
        if observer is not None:  # it is in a copy that was sent to a process that is not traced
            observer.tell_compiled()

    told.__dict__["_dynamo_marked_constant"] = True
    return told


def stays_out_of_graphs(function: Api) -> Api:
    """Has `torch.compile` trace a twin of an API function, which hands out an idle object."""

    name = function.__name__

    def told() -> None:
        from rltrace.hooks.recorder import not_compiled

        not_compiled(f"rltrace.{name}")

    told.__dict__["_dynamo_marked_constant"] = True

    def twin(*args: Any, **kwargs: Any) -> Untraced:
        told()
        return Untraced()

    setattr(function, COMPILED_AS, twin)
    return function
