"""When a run is over, as the agent of a node sees it.

On the node where the run was started that is when `wrap` has ended; when `wrap` alone was killed,
when its command has. Elsewhere it is when `run.json` says so, or when the first node has been
silent for long and no traced process is left here. Where a node shares no disk with the first, what
its processes record as they end is waited for, and of a job that was handed to a cluster, which
goes on when the run has ended, all of them are.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rltrace.trace.errors import RltraceError
from rltrace.trace.ranks import go_on
from rltrace.trace.run_dir import CLOCKS, PROCESS, RUN_FILE, read_run_json
from rltrace.trace.texts import told_in

SILENT_S = 30.0
_LINGER_S = 15.0
"""How long the processes of a node apart may take to end when the run has."""
_NOBODY_S = 300.0
"""A node apart on which there has been no traced process for so long has done its part."""
_LOOK_EVERY_S = 2.0


class Lifetime:
    def __init__(self, run_dir: str, node: str, apart: bool = False, detached: bool = False):
        """`apart`: the directory is this node's own; `detached`: the job may outlive the run."""
        self._run_dir = Path(run_dir)
        self._node = node
        self._apart = apart
        self._detached = detached
        self._ended_at = float("inf")
        self._somebody_at = self._looked_at = time.monotonic()
        self._read_at = self._spoke_at = -1
        self._heard_at = time.monotonic()
        self.run: dict[str, Any] = {}
        self._watched: dict[str, WatchedProcess] = {}
        self._is_replaced = False
        self._refresh()

    @property
    def first_node(self) -> str:
        """The node where the run was started; its clock is the run's reference."""
        return str(self.run.get("node", ""))

    @property
    def is_first(self) -> bool:
        """Whether the run was started here: not only on this node's clock, which containers share,
        but in this directory."""
        return self.first_node == self._node and not self._apart

    def is_over(self) -> bool:
        """Whether nothing more is to come from the run."""
        if self.is_deleted():
            return True
        ended = self.run.get("end_real_ns") is not None
        if self._apart:
            return self._is_over_apart(ended)
        if ended:
            return True
        if self.is_first:
            wrap, command = self._process("wrap_pid"), self._process("command_pid")
            return not (wrap.is_alive() or command.is_alive() or go_on(self._run_dir))
        return self._first_node_is_silent() and not self._traced_process_here()

    def is_deleted(self) -> bool:
        """Whether the run's directory is gone, or is another run's by now: whoever deletes one may
        make the next in its place at once, and it is none of ours."""
        try:
            os.stat(self._run_dir)
        except OSError as error:  # else a network's disk is away for a moment
            return isinstance(error, FileNotFoundError | NotADirectoryError)
        self._refresh()
        return self._is_replaced

    def _is_over_apart(self, ended: bool) -> bool:
        now = time.monotonic()
        if ended:
            self._ended_at = min(self._ended_at, now)
        if now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            if self._traced_process_here():
                self._somebody_at = now
        alone_s = now - self._somebody_at
        if not ended:
            return alone_s > _NOBODY_S
        if self._detached:
            return alone_s > SILENT_S
        return alone_s > _LOOK_EVERY_S or now - self._ended_at > _LINGER_S

    def _refresh(self) -> None:
        with suppress(OSError, RltraceError):  # it is being replaced, or its disk is away
            changed_at = os.stat(self._run_dir / RUN_FILE).st_mtime_ns
            if changed_at != self._read_at:
                run = read_run_json(str(self._run_dir))
                was, now = _made_by(self.run), _made_by(run)
                if was is not None and was != now:
                    self._is_replaced = True
                    return
                self.run = run
                self._read_at = changed_at

    def _process(self, key: str) -> WatchedProcess:
        pid = self.run.get(key)
        if key not in self._watched and isinstance(pid, int):
            self._watched[key] = WatchedProcess(pid)
        return self._watched.get(key, WatchedProcess(-1))

    def _first_node_is_silent(self) -> bool:
        """By this node's monotonic clock: the other node's, and that of the disk, may be hours off,
        and any of them may be set."""
        spoke_at = -1
        with suppress(OSError), open(self._run_dir / CLOCKS / f"{self.first_node}.jsonl") as file:
            spoke_at = os.fstat(file.fileno()).st_mtime_ns  # NFS asks its server where one opens
        if spoke_at != self._spoke_at:
            self._spoke_at, self._heard_at = spoke_at, time.monotonic()
        return time.monotonic() - self._heard_at > SILENT_S

    def _traced_process_here(self) -> bool:
        for path in (self._run_dir / PROCESS).glob("*.json"):
            process = told_in(path)
            here = process.get("node") == self._node and process.get("pid") != os.getpid()
            if here and os.path.exists(f"/proc/{process.get('pid')}"):
                return True
        return False


def _made_by(run: dict[str, Any]) -> tuple[int, int] | None:
    """What tells a run from another one in a directory of the same name; None on a node apart
    before the run's own description has come."""
    pid, start_ns = run.get("wrap_pid"), run.get("start_monotonic_ns")
    if not isinstance(pid, int) or not isinstance(start_ns, int):
        return None
    return pid, start_ns


# --- whether a process still runs, whoever started it


class WatchedProcess:
    """A process, told apart from a later one with the same number."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = -1
        if pid > 0:
            with suppress(OSError):  # it has ended
                self._handle = os.pidfd_open(pid)

    def is_alive(self) -> bool:
        if self._handle < 0:
            return False
        ended, _, _ = select.select([self._handle], [], [], 0)
        return not ended
