"""The ranks of a launcher that started `rltrace wrap` many times.

All share one run. The first makes it, the last closes it; a name in `ranks/` is one process's claim
to a rank.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rltrace.trace.clock import node_id
from rltrace.trace.errors import RltraceError
from rltrace.trace.run_dir import read_run_json, write_first, write_json
from rltrace.trace.safe_open import alone
from rltrace.trace.untrusted_files import own_files, parsed, read_own, told_in

RANKS = "ranks"
LAUNCH = "launch"  # in a run's description: the launch that has it, as `id` and number of `ranks`
_MADE_WITHIN_S = 5.0  # until others can enter a run that is being made


def enter(run: Path, rank: int) -> None:
    """Makes this process a rank of the run. Errors: OSError, also where the rank is taken."""
    (run / RANKS).mkdir(exist_ok=True)
    told = {"rank": rank, "node": node_id(), "host": socket.gethostname(), "wrap_pid": os.getpid()}
    write_first(_path(run, rank), {**told, "command_pid": None, "exit_code": None})


def join(run: Path, launch: dict[str, Any], rank: int) -> bool:
    """Enters the run of the same launch; False where it is another's, is over, or has the rank."""
    until = time.monotonic() + _MADE_WITHIN_S
    while time.monotonic() < until:
        with suppress(RltraceError):  # it is being made
            told = read_run_json(str(run))
            if told.get(LAUNCH) != launch or told.get("end_real_ns") is not None:
                return False
            if own_files(run / RANKS, ".json")[0]:  # whoever made it is in it
                try:
                    enter(run, rank)
                    return True
                except OSError:  # the rank is there, or nothing can be written
                    return False
        time.sleep(0.05)
    return False


def tell(run: Path, rank: int, **fields: Any) -> None:
    """Adds to what a rank says of itself. Errors: OSError, ValueError."""
    write_json(_path(run, rank), {**parsed(read_own(_path(run, rank))), **fields})


def leave(run: Path, rank: int, code: int) -> int | None:
    """Writes down how a rank ended. Returns the exit code of all where it was the last (the first
    by rank that is not 0), else None. Errors: OSError, ValueError."""
    with alone(run / RANKS):
        tell(run, rank, exit_code=code)
        told = _read(run)
        if any(map(_goes_on, told)):
            return None
        codes = [known for one in told if isinstance(known := one.get("exit_code"), int)]
        return next(filter(None, codes), 0)


def go_on(run: Path) -> bool:
    """Whether a rank, on any node, has not ended, or may still be writing down how all did."""
    return any(_goes_on(told) or _is_alive(told, "wrap_pid") for told in _read(run))


def _goes_on(told: dict[str, Any]) -> bool:
    may_live = not _is_here(told) or any(_is_alive(told, w) for w in ("wrap_pid", "command_pid"))
    return told.get("exit_code") is None and may_live


def _is_here(told: dict[str, Any]) -> bool:
    return (told.get("node"), told.get("host")) == (node_id(), socket.gethostname())


def _is_alive(told: dict[str, Any], which: str) -> bool:
    pid = told.get(which)
    return _is_here(told) and isinstance(pid, int) and os.path.exists(f"/proc/{pid}")


def _read(run: Path) -> list[dict[str, Any]]:
    told = map(told_in, own_files(run / RANKS, ".json")[0])
    known = [one for one in told if isinstance(one.get("rank"), int)]
    return sorted(known, key=lambda one: int(one["rank"]))


def _path(run: Path, rank: int) -> str:
    return f"{run / RANKS}/{rank}.json"
