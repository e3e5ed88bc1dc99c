"""What a process runs, and its place in a launch."""

from __future__ import annotations

import os

from rltrace.trace.safe_text import redacted


class Program:
    """`kind`: "script", "module" (`-m`), "code" (`-c`), "" (stdin); `name`: path, module, code."""

    __slots__ = ("kind", "name")

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name


def program(orig_argv: list[str]) -> Program:
    kind, place, begin = _place(orig_argv)
    return Program(kind, orig_argv[place][begin:] if place < len(orig_argv) else "")


def _place(orig_argv: list[str]) -> tuple[str, int, int]:
    """The kind; the place of the word that names the program, and of the name in that word."""
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
    """The words as a run holds them: the program, and no value that may be a secret. No code of
    `-c`: a job that learns to program runs what it generated so."""
    kind, place, begin = _place(orig_argv)
    words = redacted(orig_argv, place)
    if kind == "code" and place < len(words):
        word = orig_argv[place]
        child = next((start for start in _STARTS_A_CHILD if word[begin:].startswith(start)), "")
        words[place] = word[:begin] + child + CODE
    return words


# Rank, number of ranks, rank on the node, and what tells a launch from others. The innermost comes
# first: what the job sets itself, then what an MPI says that was started within a Slurm step.
_STEP = ("SLURM_JOB_ID", "SLURM_STEP_ID")
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", ("MASTER_ADDR", "MASTER_PORT")),
    (
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMIX_NAMESPACE",),
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", ("PALS_APID",)),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", _STEP),
)


class Launch:
    """This process's place: `rank` of `ranks`, `local` among those of its node (-1: unknown). `id`
    tells the launch from others as far as the launcher does; `is_known`: it is like no other's."""

    __slots__ = ("id", "is_known", "local", "rank", "ranks")

    def __init__(self, rank: int, ranks: int, local: int, words: list[str], is_known: bool) -> None:
        self.rank, self.ranks, self.local = rank, ranks, local
        self.id, self.is_known = "-".join(words), is_known


def launch() -> Launch | None:
    """This process's place in its launch, if it has one."""
    step = _values(_STEP)
    for rank, ranks, local, names in _LAUNCHERS:
        place, size, words = _number(rank), _number(ranks), _values(names)
        if place < 0 or size < 0 or (names is _STEP and len(step) < len(_STEP)):
            continue  # a batch script is no rank of a step, though Slurm gives it numbers, too
        is_known = len(words) == len(names)
        words = [rank.partition("_")[0].lower(), *words, *([] if is_known else step)]
        # MPICH names no launch, but has a step of its own where Slurm is.
        return Launch(place, size, _number(local), words, is_known or len(step) == len(_STEP))
    return None


def _values(names: tuple[str, ...]) -> list[str]:
    return [os.environ[name] for name in names if os.environ.get(name)]


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
