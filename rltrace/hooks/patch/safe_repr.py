"""Names values and exceptions without quoting the job's data.

Prompts, completions and secrets turn up in the wrong place of a call, in what exceptions say, and
in names of files and classes made of a text: what is written into a run (`problems/`) has none of
them. Standard library only.
"""

from __future__ import annotations

import os
import sys

from rltrace.trace.job_exceptions import contained

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

_LONGEST_VALUE = 60  # characters
_FROZEN, _IMPORTING = "<frozen ", ("importlib._bootstrap", "importlib._bootstrap_external")


def quoted(value: object) -> str:
    """A number itself, of anything else kind and length: it may be a prompt or a secret."""
    kind = kind_of(value)
    with contained():
        for number in (bool, int, float, complex):
            if isinstance(value, number):  # a subclass has a `__repr__` of its own
                return f"{number.__repr__(value)[:_LONGEST_VALUE]} ({kind})"
        return f"a {kind} of length {len(value)}"  # type: ignore[arg-type]
    return f"a {kind}"


def describe(error: BaseException) -> str:
    """An exception's kind, and where it was raised or, of the system's own, what the system says.
    Never what it says itself, which may quote anything."""
    kind = kind_of(error)
    with contained():
        if isinstance(error, OSError) and isinstance(error.errno, int):
            return f"{kind}: {os.strerror(error.errno)}"
        return f"{kind}{_raised_at(error)}"
    return kind


def kind_of(value: object) -> str:
    """The name of a value's class or, if made of a text, of the nearest base that was not."""
    return next(filter(None, map(_written_name, type(value).__mro__)), "object")


def _written_name(kind: type) -> str:
    """The name of a class in the file of its module, or of compiled code."""
    with contained():
        name = str(kind.__name__)
        file = getattr(sys.modules[kind.__module__], "__file__", None) or ""
        if file.endswith(".py"):
            import re

            with open(file, encoding="utf-8", errors="replace") as source:
                if re.search(rf"\b{re.escape(name)}\b", source.read()):
                    return name
        for module in list(sys.modules.values()):
            holds = object.__getattribute__(module, "__dict__")  # loads none that is lazy
            is_compiled = not (holds.get("__file__") or "").endswith(".py")
            if is_compiled and holds.get("__spec__") and holds.get(name) is kind:
                return name
    return ""


def _raised_at(error: BaseException) -> str:
    """The innermost place in a file, from which generated code may have been called."""
    place = generated = ""
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        is_written = _is_written(code)
        generated = "" if is_written else " in generated code"
        if is_written:
            place = f" at {os.path.basename(code.co_filename)}:{step.tb_lineno}"
        step = step.tb_next
    return generated + place


def _is_written(code: CodeType) -> bool:
    """Whether code is in a file, or Python's own; what was compiled from text names any file."""
    name = code.co_filename
    if name.startswith(_FROZEN):
        import _imp

        return name[len(_FROZEN) : -1] in _IMPORTING or _imp.is_frozen(name[len(_FROZEN) : -1])
    return os.path.isfile(name)
