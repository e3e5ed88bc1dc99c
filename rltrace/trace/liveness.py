"""Whether a traced process still lives, as far as this node can tell.

Only a process of this node and host name can be asked about (containers share a boot id and see
other pids). Pids are used again, so it has to have begun before the recording did.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltrace.trace.clock import node_id
from rltrace.trace.metadata_validation import read_described
from rltrace.trace.run_dir import CLOCKS, FETCHED_FILE, NAMES, NODES, PROCESS

if TYPE_CHECKING:
    from rltrace.trace.read.processes import TracedProcess


_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_SLACK_NS = 10**9  # a tick, and how far the two clocks of a sleep may be off
_BEGINS_WITHIN_NS = 10 * 10**9  # of its run's start, a command is running
_ENDED = "ZX"  # states of /proc/<pid>/stat: a zombie runs no more
_TOLD = (CLOCKS, NODES, PROCESS, NAMES)  # what an agent, or a process that begins, writes to


class Liveness:
    """Asks `/proc` about a run's processes; of a run brought from a URL nobody here can tell."""

    def __init__(self, run: Path | None = None) -> None:
        self.node = node_id()
        self._is_here = run is None or not is_brought(run)
        self._host = socket.gethostname()

    def of_process(self, process: TracedProcess) -> bool | None:
        """Whether a process lives; None where nobody here can tell."""
        started = process.facts.get("start_ns")
        is_here = self._is_here and process.node == self.node and process.host == self._host
        if not is_here or not isinstance(started, int):
            return None
        began_ns = began_at(process.pid)
        return began_ns is not None and began_ns <= started + _SLACK_NS

    def of_command(self, meta: dict[str, object]) -> bool | None:
        """Whether the traced command lives, or `wrap`, which is about to write down how it ended
        (of `rltrace.start` the program itself); None where nobody here can tell."""
        started, real_ns = meta.get("start_monotonic_ns"), 0
        if not isinstance(started, int):  # an older writer's; a clock that was set deceives here
            started, real_ns = meta.get("start_real_ns"), time.time_ns() - time.monotonic_ns()
        pids = [pid for key in ("command_pid", "wrap_pid") if isinstance(pid := meta.get(key), int)]
        if meta.get("node") != self.node or meta.get("host", self._host) != self._host:
            return None
        if not pids or not isinstance(started, int) or not self._is_here:
            return None
        began = [began_ns for pid in pids if (began_ns := began_at(pid)) is not None]
        return any(began_ns + real_ns <= started + _BEGINS_WITHIN_NS for began_ns in began)


def heard_of_s(run: Path) -> float:
    """When a run was last heard of (Unix s, its disk's clock): agents write every few seconds."""
    at = [0.0]
    for folder in _TOLD:
        with suppress(OSError), os.scandir(run / folder) as found:
            at += [entry.stat(follow_symlinks=False).st_mtime for entry in found]
    return max(at)


def described_alive(run: Path) -> tuple[dict[str, Any], bool | None]:
    """A run's description, and whether it goes on (None: nobody here can tell). It is over only if
    it says so, or nobody is left who would: its end is written before the last of them is gone, so
    it is looked for once more. Errors: as `read_described`."""
    meta = read_described(str(run))
    if meta.get("end_real_ns") is not None:
        return meta, False
    lives = Liveness(run).of_command(meta)
    if lives is False:
        from rltrace.trace.launcher_ranks import go_on

        lives = go_on(run)
    return (read_described(str(run)) if lives is False else meta), lives


def is_brought(run: Path) -> bool:
    """Whether a run's directory was brought from a URL."""
    return (run / FETCHED_FILE).exists()


def began_at(pid: int) -> int | None:
    """When a living process began, by the monotonic clock; None for one that has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            said = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    state, *numbers = said[said.rindex(")") + 2 :].split()
    if state in _ENDED:
        return None
    slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return int(numbers[18]) * _TICK_NS - slept_ns


OUTLIVED = "outlived_by"  # in a run's description: how many processes of its command outlived it


def command_s(meta: dict[str, Any]) -> float | None:
    """Seconds from the making of the run directory to its command's end; None: not known."""
    start, end = meta.get("start_real_ns"), meta.get("end_real_ns")
    return (end - start) / 1e9 if isinstance(start, int) and isinstance(end, int) else None
