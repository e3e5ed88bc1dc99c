"""Values and exceptions in a few words that hold nothing of what the job works on.

Prompts, tokens and secrets turn up in the wrong place of a call, and in what exceptions say: what
is written into a run (`problems/`) has neither. Standard library only.
"""

from __future__ import annotations

import os
import sys

_LONGEST = 500  # characters of an exception
_LONGEST_VALUE = 60


def quoted(value: object) -> str:
    """A value as its owner would know it: a number itself, of anything else its kind and length
    only, since it may be a prompt, tokens or a secret."""
    kind = type(value).__name__
    try:
        if isinstance(value, (bool, int, float, complex)):
            from reprlib import Repr  # which `collections` has loaded; no `__repr__` is safe

            short = Repr()
            short.maxlong = short.maxother = _LONGEST_VALUE
            return f"{short.repr(value)[:_LONGEST_VALUE]} ({kind})"
        return f"a {kind} of length {len(value)}"  # type: ignore[arg-type]
    except Exception:
        return f"a {kind}"


_TOLD = (ArithmeticError, AttributeError, ImportError, MemoryError, NameError, TypeError)
"""Exceptions whose messages are about programs and not about what they work on, unless that is a
program itself: code of a completion that a job has run has no file."""


def describe(error: BaseException) -> str:
    """An exception in a few words, whatever its `__str__` does: where it was raised and, unless
    that may quote what the job works on (prompts, tokens), what it says."""
    kind = type(error).__name__
    try:
        if isinstance(error, OSError) and error.errno is not None:
            return f"{kind}: {os.strerror(error.errno)}"
        place, line = _raised_at(error)
        if (isinstance(error, _TOLD) or kind == "OutOfMemoryError") and not _is_of_made_code(error):
            return f"{kind}: {error}"[:_LONGEST]
        return f"{kind} at {place}:{line}" if place else kind
    except Exception:
        return kind


def _raised_at(error: BaseException) -> tuple[str, int]:
    """The name of the file and the line; an empty name where nobody knows."""
    step = error.__traceback__
    if step is None:
        return "", 0
    while step.tb_next is not None:
        step = step.tb_next
    return os.path.basename(step.tb_frame.f_code.co_filename), step.tb_lineno


def _is_of_made_code(error: BaseException) -> bool:
    """Whether it went through code that a program ran from a text, but for a program which is one
    (`python -c`) and what it runs as its own."""
    program = getattr(sys.modules.get("__main__"), "__dict__", None)
    own = program if sys.argv[:1] == ["-c"] else None
    step = error.__traceback__
    while step is not None:
        frame = step.tb_frame
        if frame.f_code.co_filename == "<string>" and frame.f_globals is not own:
            return True
        step = step.tb_next
    return False
