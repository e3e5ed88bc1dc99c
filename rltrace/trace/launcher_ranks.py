"""The ranks of a launcher that started `rltrace wrap` many times.

All share one run: the first makes it, the last closes it. A file in `ranks/` claims a rank.
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
from rltrace.trace.metadata_validation import read_run_json, update_run_json
from rltrace.trace.run_dir import RUN_FILE, write_first, write_json
from rltrace.trace.safe_open import alone
from rltrace.trace.untrusted_files import own_files, parsed, read_own, told_in

RANKS = "ranks"
LAUNCH = "launch"  # in a run's description: the launch that has it, as `id` and number of `ranks`
MISSING_RANKS = "missing_ranks"  # there, at its end: how many of them recorded elsewhere, if at all
MISSING = "ranks not in this run: {}; share a folder, or `rltrace wrap --ship URL -- srun ...`"
_MADE_WITHIN_S = 5.0  # until others can enter a run that is being made


def enter(run: Path, rank: int) -> None:
    """Makes this process a rank of the run. Errors: OSError, also where the rank is taken."""
    (run / RANKS).mkdir(exist_ok=True)
    place = {"node": node_id(), "host": socket.gethostname()}
    write_first(_path(run, rank), {"rank": rank, **place, "wrap_pid": os.getpid()})


def join(run: Path, described: dict[str, Any], rank: int, is_known: bool) -> bool:
    """Enters the run of the same launch, which goes on then; False where it is another's, has the
    rank, or is over and the launcher has no name for the launch: it may be the next one."""
    until = time.monotonic() + _MADE_WITHIN_S
    while time.monotonic() < until:
        with suppress(RltraceError):  # it is being made
            told = read_run_json(str(run))
            is_over = told.get("end_real_ns") is not None
            if told.get(LAUNCH) != described[LAUNCH] or (is_over and not is_known):
                return False
            if own_files(run / RANKS, ".json")[0]:  # whoever made it is in it
                with suppress(OSError):  # else the rank is there, or nothing can be written
                    enter(run, rank)
                    if is_over:
                        open_ = dict.fromkeys(("end_real_ns", "exit_code", MISSING_RANKS))
                        update_run_json(str(run), **open_)
                    return True
                return False
        time.sleep(0.05)
    return False


def tell(run: Path, rank: int, **fields: Any) -> None:
    """Adds to what a rank says of itself. Errors: OSError, ValueError."""
    write_json(_path(run, rank), {**parsed(read_own(_path(run, rank))), **fields})


def leave(run: Path, rank: int, code: int) -> dict[str, Any]:
    """Writes down how a rank ended, and after how many others. Returns how all ended where it was
    the last of those in the run, else nothing. Errors: OSError, ValueError."""
    with alone(run / RANKS):
        before = sum(isinstance(told.get("exit_code"), int) for told in _read(run))
        tell(run, rank, exit_code=code, ended_after=before)
        return {} if any(map(_goes_on, _read(run))) else how_all_ended(run)


def how_all_ended(run: Path) -> dict[str, Any]:
    """What the description of a launch's run says at its end: how many ranks were never in it, and
    the exit code of all (None: unknown). The first that fails ends the others: it is that one's."""
    launch = told_in(run / RUN_FILE).get(LAUNCH)
    if not isinstance(launch, dict):
        return {}
    codes = [told.get("exit_code") for told in _read(run)]
    code = next(filter(None, codes), None if None in codes else 0)
    return {"exit_code": code, MISSING_RANKS: launch["ranks"] - len(codes)}


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
    """What the ranks say of themselves, in the order in which they ended."""
    told = list(map(told_in, own_files(run / RANKS, ".json")[0]))
    return sorted(filter(None, told), key=lambda one: int(one.get("ended_after", len(told))))


def _path(run: Path, rank: int) -> str:
    return f"{run / RANKS}/{rank}.json"
