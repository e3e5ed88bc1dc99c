"""What a Python process was started to run, told from its command line."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    class Program(NamedTuple):
        """`kind` is `"script"`, `"module"` (`-m`), `"code"` (`-c`) or `""` (interactive, stdin);
        `name` is the path, the module or the code."""

        kind: str
        name: str
else:
    # Written out: `typing` would cost every process of the job 8 ms.
    class Program(tuple):
        __slots__ = ()

        def __new__(cls, kind, name):
            return tuple.__new__(cls, (kind, name))

        kind = property(lambda self: self[0])
        name = property(lambda self: self[1])


def program(orig_argv: list[str]) -> Program:
    """Reads `sys.orig_argv` the way the interpreter does."""
    words = iter(orig_argv[1:])
    for word in words:
        if word == "-":
            break
        if not word.startswith("-"):
            return Program("script", word)
        if word == "--check-hash-based-pycs":
            next(words, "")
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter in "cm":
                kind = "code" if letter == "c" else "module"
                return Program(kind, word[place:] or next(words, ""))
            if letter in "XW":
                if not word[place:]:
                    next(words, "")
                break
            if letter == "-":
                break
    return Program("", "")
