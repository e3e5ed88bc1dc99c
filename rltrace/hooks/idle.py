"""What the API hands out when there is no run: on it everything is allowed and nothing happens."""

from __future__ import annotations

from _weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


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

    def set(self, **values: Any) -> None:
        """Does nothing."""

    def end(self) -> None:
        """Does nothing."""

    def discard(self) -> None:
        """Does nothing."""

    def first_token(self) -> None:
        """Does nothing."""

    def finish(self, *args: Any, **values: Any) -> None:
        """Does nothing."""

    async def __aenter__(self) -> Idle:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        Idle.decorated += 1
        return function


IDLE = Idle()
Idle.__enter__ = ref(IDLE)  # type: ignore[assignment]  # calling a reference gives its object
