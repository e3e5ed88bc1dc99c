"""An agent that something killed is started again: a job of weeks keeps its readings of devices,
its cap and its shipping when the kernel, out of memory, has picked the agent."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from rltrace.run.closing import is_gone
from rltrace.run.opening import agent_lock, start_agent
from rltrace.run.watched import WatchedProcess
from rltrace.trace.clock import node_id
from rltrace.trace.run_dir import NODES
from rltrace.trace.texts import parsed

_FIRST_S, _LONGEST_S = 10.0, 3600.0
"""After one was started again: twice as long each time, so that what kills them all is not fed."""


class AgentKeeper:
    """Keeps the agent that this process has started for the run in `run_dir`."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._agent = WatchedProcess(-1)
        self._pid = -1
        self._patience_s, self._not_before = _FIRST_S, 0.0

    def look(self) -> None:
        """Starts it again if it was killed. One that ended by itself, or was asked to, has said so
        and is let go. Raises nothing: the job comes first."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            told = parsed((self._run_dir / NODES / f"{node_id()}.json").read_text("utf-8"))
            if "end_ns" in told:
                return
            if told["pid"] != self._pid:
                self._pid = int(told["pid"])
                self._agent = WatchedProcess(self._pid)
            now = time.monotonic()
            if (
                self._agent.is_alive()
                or now < self._not_before
                or is_gone(self._run_dir, os.getpid())
            ):
                return
            self._not_before = now + self._patience_s
            self._patience_s = min(2 * self._patience_s, _LONGEST_S)
            os.unlink(agent_lock(self._run_dir))
            start_agent(self._run_dir)
