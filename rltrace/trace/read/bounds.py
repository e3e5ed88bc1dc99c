"""How much of anybody's run is read: the one table of bounds, for every reader.

Real runs stay far below: a tenth is common. `RLTRACE_BOUNDS=4` raises all of them four times, and
what a command may take of the memory. Standard library only.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress

from rltrace.trace.errors import RltraceError, WrongUsage

RAISED_BY = "RLTRACE_BOUNDS"
_MOST_RAISED = 10_000


def _raised(bound: int) -> int:
    said = os.environ.get(RAISED_BY, "")
    return bound * min(max(int(said), 1), _MOST_RAISED) if said.isdecimal() else bound


MOST_FILES = _raised(1 << 18)  # of a run; 30,000 short processes have half
MOST_PROCESSES = _raised(1 << 15)  # a job that starts a verifier for each sample has ten thousand
MOST_PROBLEMS = 1 << 12  # that are told; more say nothing new
MOST_TEXT_BYTES = _raised(64 << 20)  # of a text; 20,000 names of a kilobyte have a third of it
MOST_TOTAL_BYTES = _raised(1 << 30)  # of all files of a run, and beyond them
MOST_GIVEN_BYTES = _raised(256 << 20)  # of a file that a user names, and beyond them
OF_DISK = 32  # times what a file takes of the disk: one that packs takes less, a hole nothing
MOST_SEGMENT_BYTES = _raised(128 << 20)  # the writer begins another file after 64 MiB
MOST_BATCH_ROWS = 1 << 16  # the writer gives 8,192 at most
LEAST_BATCH_BYTES = 1 << 13  # of the file for each batch but the first; the writer doubles them
MOST_SMALL_ROWS = _raised(1 << 21)  # that a table of Parquet may have, and beyond them
ROWS_OF_BYTE = 2  # for each byte of its files; real ones have a quarter, as no two rows are alike
MOST_LINES = _raised(1 << 21)  # of a log, of `MOST_TOTAL_BYTES` characters
MOST_STEPS = _raised(1 << 17)  # that a log tells of
MOST_PARQUET_BYTES = _raised(16 << 30)  # of a file that is brought from a URL
MOST_UNPACKED_BYTES = _raised(512 << 20)  # a thousandth of it on disk can unpack to it
MOST_UNPACKED_VALUES = _raised(1 << 24)  # of JSON: each takes some 60 bytes, and three of the text
LARGEST_WHOLE = (1 << 31) - 1  # of a step, a version or a count of 32 bits
LARGEST_COUNT = 1 << 53  # of bytes, tokens or nanoseconds: floats hold it, and a thousand a sum
EVER_NS = 1 << 62  # Unix ns of a moment in 2116: two can be subtracted and added
FOREIGN_QUERY_S = 60.0  # that a query of a run from elsewhere may take, unless it is told more

_MEMORY_BYTES = _raised(1800 << 20)  # that a command writes to; libraries' files come on top
LEAST_SPACE = 2560 << 20  # of addresses: libraries reserve some for each thread
LEAST_SPACE_OF_ONE = 1 << 30  # where a database has one thread, or few rows
_MEMORY_OF_DISK = 4  # times what a run of this machine takes of the disk
_ROOM_OF_DUCKDB = 0.6
_SPILLED = 16  # times the memory

_held: list[int] = []  # the memory that this command may take; empty: nobody holds it


def hold_memory(run_bytes: int = 0) -> None:
    """Holds this process to the memory of a command; `run_bytes`: on disk, of a run that was
    recorded here. What needs more raises `MemoryError`. Errors: `WrongUsage`."""
    if not (said := os.environ.get(RAISED_BY, "1")).isdecimal() or not int(said):
        raise WrongUsage(f"{RAISED_BY}={said!r} is no whole number of times: 4, for example")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each of its threads takes 40 MB for good
    # Of Arrow's allocator: what it reserves at its start, a GiB, is then not taken before its time.
    os.environ.setdefault("MIMALLOC_ARENA_EAGER_COMMIT", "0")
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        os.environ.setdefault("MIMALLOC_ARENA_RESERVE", "65536")  # KiB
    most = _MEMORY_BYTES + _MEMORY_OF_DISK * run_bytes
    if most > max(_held, default=0):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard == resource.RLIM_INFINITY or most < hard:
            with suppress(OSError, ValueError):  # a system that has no such limit
                resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
                _held[:] = [most]


def hold_more(run_bytes: int) -> None:
    """As `hold_memory`, where this process is held."""
    if _held:
        hold_memory(run_bytes)


def let_go() -> None:
    """Ends that, before a program is started that is no part of the command."""
    if _held:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        _held.clear()


def short_of_space(least: int = LEAST_SPACE) -> str:
    """What to say where fewer addresses may be had than an analysis needs: libraries end a process
    where they get none, some with exit code 1. Empty: there are enough."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY or most >= least:
        return ""
    said = f"only {most >> 20:,} MiB of address space may be had here (`ulimit -v`)"
    return f"{said}, and at least {least >> 20:,} are needed: raise that limit"


def check_space(least: int = LEAST_SPACE) -> None:
    """Errors: `RltraceError`, before a database starts that needs more."""
    if said := short_of_space(least):
        raise RltraceError(said)


def of_duckdb() -> dict[str, str]:
    """What a database is told of it before it starts. Errors: `RltraceError`."""
    check_space()
    if not _held or _held[0] > 2 * _MEMORY_BYTES:  # then by itself, of the memory that there is
        return {}
    room = round(_held[0] * _ROOM_OF_DUCKDB)
    return {"memory_limit": f"{room}B", "max_temp_directory_size": f"{_SPILLED * room}B"}
