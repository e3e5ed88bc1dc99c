"""What a Python process was started to run, told from its command line."""

from __future__ import annotations

from rltrace.trace.redacted import redacted


class Program:
    """`kind` is `"script"`, `"module"` (`-m`), `"code"` (`-c`) or `""` (interactive, stdin); `name`
    is the path, the module or the code."""

    __slots__ = ("kind", "name")

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name


def program(orig_argv: list[str]) -> Program:
    """Reads `sys.orig_argv` the way the interpreter does."""
    kind, place, begin = _place(orig_argv)
    return Program(kind, orig_argv[place][begin:] if place < len(orig_argv) else "")


def _place(orig_argv: list[str]) -> tuple[str, int, int]:
    """The kind of a program, the place of the word that names it, behind all words where none
    does, and where in that word its name begins."""
    place, end = 1, len(orig_argv)
    while place < end:
        word = orig_argv[place]
        if word == "-":
            break
        if not word.startswith("-"):
            return "script", place, 0
        if word == "--check-hash-based-pycs":
            place += 2
            continue
        for begin, letter in enumerate(word[1:], 2):
            if letter in "cm":
                kind = "code" if letter == "c" else "module"
                return (kind, place, begin) if word[begin:] else (kind, place + 1, 0)
            if letter in "XW":
                if not word[begin:]:
                    place += 1
                break
            if letter == "-":
                break
        place += 1
    return "", end, 0


CODE = "[code]"
_STARTS_A_CHILD = (
    "from multiprocessing.spawn import spawn_main; spawn_main(",
    "from multiprocessing.resource_tracker import main;main(",
    "from multiprocessing.forkserver import main; main(",
)
"""Code by which Python starts processes of its own."""


def shown(orig_argv: list[str]) -> list[str]:
    """The words as a run holds them: the program, and no value that may be a secret. Of code that
    `-c` runs none is left, as a job that learns to program runs what it generated so."""
    kind, place, begin = _place(orig_argv)
    words = redacted(orig_argv, place)
    if kind == "code" and place < len(words):
        word = orig_argv[place]
        child = next((start for start in _STARTS_A_CHILD if word[begin:].startswith(start)), "")
        words[place] = word[:begin] + child + CODE
    return words
