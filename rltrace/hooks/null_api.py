"""What the API hands out where nothing is recorded: there is no run, or `torch.compile` is at work.
On it everything is allowed and nothing happens.

`torch.compile` traces a function and makes one graph of all that it calls. A call of the recorder
would break the graph, and end a `fullgraph=True` job. It follows the attribute `COMPILED_AS` of a
function to what it is to trace instead, and calls a function that is marked as constant once, while
it traces. So a twin without our code stands for what records, and the report says what was not
recorded.
"""

from __future__ import annotations

from _weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Api = TypeVar("Api", bound=Callable[..., Any])


COMPILED_AS = "_torchdynamo_inline"
INSIDE = "inside-torch-compile"
"""The problem of what was compiled: its spans are not recorded."""


class Idle:
    """Stands for a span, trajectory, reward or update that nobody records."""

    __slots__ = ("__weakref__",)

    decorated = 0
    """Functions that were decorated while there was no run: they stay unrecorded."""

    start_ns = -1
    """It has not begun."""

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
    """A function that a twin calls: it is called once for each time that the twin is compiled."""

    def told() -> None:
        if observer is not None:  # it is in a copy that was sent to a process that is not traced
            observer.tell_compiled()

    told.__dict__["_dynamo_marked_constant"] = True
    return told


class _Api:
    """What tells that a function of the API was compiled."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def tell_compiled(self) -> None:
        from rltrace.hooks.recorder import not_compiled

        not_compiled(f"rltrace.{self.name}")


def stays_out_of_graphs(function: Api) -> Api:
    """Has `torch.compile` trace a twin of a function of the API, which hands out an idle object."""

    told = told_when_compiled(_Api(function.__name__))

    def twin(*args: Any, **kwargs: Any) -> Untraced:
        told()
        return Untraced()

    setattr(function, COMPILED_AS, twin)
    return function
