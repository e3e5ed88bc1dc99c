"""Whether an exception in our code is the job's or our own.

A time limit (a signal handler that raises), Ctrl-C and `PyThreadState_SetAsyncExc` may strike while
our code runs; every `except Exception` around it asks here first, as such an exception goes on to
the job. CPython lets them in only where a function begins, where a loop goes round, and after a
call: where the traceback ends tells them apart. What must not be torn apart (the row that says that
a span has ended) is written as stores alone, with `-clock` for the time.
"""

from __future__ import annotations

from time import monotonic_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, TracebackType
    from typing import Any


class Clock:
    """`-clock` is `monotonic_ns()` by an operator: no call, so nothing can strike there."""

    __slots__ = ()
    __neg__ = monotonic_ns  # a builtin does not bind: it is called without the instance


clock: Any = Clock()

_OURS = "rltrace."
_BARE = (MemoryError, StopIteration, StopAsyncIteration)
"""What C code raises without an argument, as an asynchronous exception is raised."""


def from_outside(error: BaseException) -> bool:
    """Whether an exception caught around our code was let in by the interpreter, not raised by what
    our code did. Call it in the `except` clause, and `raise` where it is so (`contained` does)."""
    if not isinstance(error, Exception):
        return True
    step = error.__traceback__
    if step is None:
        return False
    foreign = []
    while step.tb_next is not None:
        called = step.tb_next.tb_frame
        if not str(called.f_globals.get("__name__")).startswith(_OURS):
            if _interrupts(step, called):
                return True
            foreign.append(called.f_code)
        step = step.tb_next
    instruction = _instruction(step)
    if instruction == "RESUME":
        return True
    if not instruction.startswith(("RAISE", "RERAISE")) and _is_bare(error):
        return True
    return bool(foreign) and any(code in foreign for code in _handlers())


class contained:
    """`with contained():` ends what our code raises there, and gives it to `tell`; what comes from
    outside goes on to the job. With `kinds`, only those end. It is two calls: code that is timed in
    fractions of a microsecond writes it out instead."""

    __slots__ = ("_kinds", "_tell")

    def __init__(
        self, *kinds: type[Exception], tell: Callable[[Exception], object] | None = None
    ) -> None:
        self._kinds = kinds or Exception
        self._tell = tell

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, self._kinds) or from_outside(error):
            return False
        if self._tell is not None:
            self._tell(error)
        return True


def _instruction(step: TracebackType) -> str:
    """The name of the instruction at which a frame was left."""
    if step.tb_lasti < 0:
        return "RESUME"  # before Python 3.11 a function begins without an instruction
    try:
        from opcode import opname  # needed when something has struck, which is rare
    except ImportError:  # a signal handler that records has interrupted just this
        return ""
    return opname[step.tb_frame.f_code.co_code[step.tb_lasti]]


def _interrupts(step: TracebackType, called: FrameType) -> bool:
    """Whether a frame is a signal handler's, called while the frame of `step` ran: nobody calls a
    function where another one begins, and only a handler is given the frame below it."""
    if _instruction(step) == "RESUME":
        return True
    below = step.tb_frame
    for value in [*called.f_locals.values()]:
        if value is below or (type(value) is tuple and any(part is below for part in value)):
            return True
    return False


def _handlers() -> list[Any]:
    from signal import getsignal, valid_signals

    codes = []
    for number in valid_signals():
        handler: Any = getsignal(number)
        if callable(handler):
            handler = getattr(handler, "func", handler)  # functools.partial
            handler = getattr(handler, "__func__", handler)
            code = getattr(handler, "__code__", None)
            codes.append(code or getattr(type(handler).__call__, "__code__", None))
    return [code for code in codes if code is not None]


def _is_bare(error: Exception) -> bool:
    """Whether an exception could have been made from its class alone, as asynchronous ones always
    are; what C code raises of its own says what was wrong."""
    if type(error) in _BARE:
        return False
    made: CodeType | None = getattr(type(error).__init__, "__code__", None)
    if made is None:
        return not error.args
    needed = made.co_argcount - len(getattr(type(error).__init__, "__defaults__", None) or ())
    return needed <= 1
