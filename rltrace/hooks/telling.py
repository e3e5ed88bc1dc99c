"""Values and exceptions in a few words that hold nothing of what the job works on.

Prompts, tokens and secrets turn up in the wrong place of a call, and in what exceptions say: what
is written into a run (`problems/`) has neither. Standard library only.
"""

from __future__ import annotations

import os

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
"""Exceptions whose messages are about programs and not about what they work on."""


def describe(error: BaseException) -> str:
    """An exception in a few words, whatever its `__str__` does: where it was raised and, unless
    that may quote what the job works on (prompts, tokens), what it says."""
    kind = type(error).__name__
    try:
        if isinstance(error, OSError) and error.errno is not None:
            return f"{kind}: {os.strerror(error.errno)}"
        if isinstance(error, _TOLD) or kind == "OutOfMemoryError":
            return f"{kind}: {error}"[:_LONGEST]
        return f"{kind}{_raised_at(error)}"
    except Exception:
        return kind


def _raised_at(error: BaseException) -> str:
    """` at loop.py:12`; empty where nobody knows."""
    step = error.__traceback__
    if step is None:
        return ""
    while step.tb_next is not None:
        step = step.tb_next
    return f" at {os.path.basename(step.tb_frame.f_code.co_filename)}:{step.tb_lineno}"
