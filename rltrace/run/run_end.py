"""How a run ends: when that is, and what is written."""

from __future__ import annotations

import json
import os
import select
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rltrace.hooks.hook import split_target
from rltrace.hooks.null_api import INSIDE
from rltrace.trace.clock import node_id
from rltrace.trace.errors import RltraceError
from rltrace.trace.launcher_ranks import go_on, how_all_ended
from rltrace.trace.liveness import OUTLIVED, began_at
from rltrace.trace.metadata_validation import now_ns, read_run_json, update_run_json
from rltrace.trace.run_dir import (
    CLOCKS,
    NAMES,
    NODES,
    PROBLEMS,
    PROCESS,
    RUN_FILE,
    RUN_VARIABLE,
    append_line,
)
from rltrace.trace.untrusted_files import told_in
from rltrace.trace.vocabulary import STEP_SPAN

_GO_S = 1.0  # what a command has started may take to end when it has, as workers do


def close_run(run_dir: Path, exit_code: int | None) -> int:
    """Writes the end of a run; `exit_code` is `None` when nobody saw it; what ranks say themselves
    counts. Returns how many processes outlive the command. Errors: OSError, `RltraceError`."""
    ended_ns = now_ns(read_run_json(str(run_dir)))
    until = time.monotonic() + _GO_S
    # A process that forks and ends while it is looked for is found the second time, as its child.
    while (left := pids_of_run(run_dir) or pids_of_run(run_dir)) and time.monotonic() < until:
        time.sleep(0.05)
    told = {"exit_code": exit_code, **how_all_ended(run_dir), **_framework(run_dir)}
    told |= {OUTLIVED: len(left)} if left else {}
    update_run_json(str(run_dir), end_real_ns=ended_ns, **told)
    return len(left)


def pids_of_run(run_dir: Path) -> list[int]:
    """The processes of this node that were started within a run and live, whether they recorded or
    not, as far as their environment may be read."""
    mark, found = os.fsencode(f"{RUN_VARIABLE}={run_dir}"), []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return found


def is_gone(run_dir: Path, made_by: int | None) -> bool:
    """Whether the run that a process made was deleted, and maybe another made in its place."""
    if not (run_dir / RUN_FILE).exists():
        return True
    with suppress(RltraceError):  # said when the run is completed
        return read_run_json(str(run_dir)).get("wrap_pid") != made_by
    return False


def job_processes(run_dir: Path) -> list[dict[str, Any]]:
    """What the processes of a run say of themselves, but for its agents."""
    found = map(told_in, (run_dir / PROCESS).glob("*.json"))
    return [process for process in found if process and process.get("role") != "agent"]


def what_hooks_missed(run_dir: Path, hooks: Sequence[str]) -> list[str]:
    """A sentence for each of the user's hooks that recorded nothing. Errors: OSError."""
    placed = {target for process in job_processes(run_dir) for target in process.get("hooks") or ()}
    names = "".join(path.read_text("utf-8") for path in (run_dir / NAMES).glob("*.jsonl"))
    reasons = {}
    for path in (run_dir / PROBLEMS).glob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            with suppress(ValueError, TypeError, KeyError):  # reading the run reports it
                problem = json.loads(line)
                if problem["what"] in ("hook-failed", "hook-missing", INSIDE):
                    reasons[str(problem["target"])] = str(problem["detail"])
    said = []
    for hook in hooks:
        target, _, stage = hook.partition("=")
        name = STEP_SPAN if stage == STEP_SPAN else split_target(target)[1]
        if target not in placed:
            why = reasons.get(target, "no process ran such code where it can be hooked")
            said.append(f"--hook {hook} was never put in place: {why}")
        elif f'"{name}"]' not in names:
            said.append(f"--hook {hook} recorded nothing: {reasons.get(target, 'never called')}")
    return said


def _framework(run_dir: Path) -> dict[str, str | None]:
    processes = job_processes(run_dir)
    used = Counter(p["adapter"] for p in processes if isinstance(p.get("adapter"), str))
    if not used:
        return {}
    ((name, _),) = used.most_common(1)
    versions = [(p.get("versions") or {}).get(name) for p in processes]
    version = next((str(v) for v in versions if v), None)
    return {"framework": name, "framework_version": version}


def agent_is_gone(run_dir: Path) -> bool:
    """Whether this node's agent has begun, and lives no more."""
    pid = told_by_agent(run_dir).get("pid")
    return isinstance(pid, int) and began_at(pid) is None


def note_killed_agent(run_dir: Path) -> str:
    """Of a run that is not over: writes down that this node's agent was killed, and returns what
    that means; nothing where it lives. Errors: OSError, `RltraceError`."""
    if not agent_is_gone(run_dir):
        return ""
    run = read_run_json(str(run_dir))
    lacks = "its devices were not read any more"
    problem = {"what": "agent-killed", "real_ns": now_ns(run), "target": node_id(), "detail": lacks}
    # Into the agent's own file: what has another name is not shipped.
    found = (run_dir / PROCESS).glob(f"*-{told_by_agent(run_dir).get('pid')}-*.json")
    who = next((path.stem for path in sorted(found)), "agent")
    append_line(str(run_dir / PROBLEMS / f"{who}.jsonl"), problem)
    return f"the agent of this node was killed before the job ended: since then {lacks}"


def told_by_agent(run_dir: Path) -> dict[str, Any]:
    """What this node's agent says of itself; empty where it has only begun."""
    return told_in(run_dir / NODES / f"{node_id()}.json")


SILENT_S = 30.0
_LINGER_S = 15.0  # the processes of a node apart may take to end when the run has
_NOBODY_S = 300.0  # without a traced process a node apart has done its part
_LOOK_EVERY_S = 2.0


class Lifetime:
    """Whether the run in `run_dir` goes on, as seen from the node `node`: where it was started
    until `wrap` and its command have ended, elsewhere until `run.json` says so, or the first node
    is silent for long and no traced process is left here. On a node `apart`, whose directory is
    its own, its processes' last rows are waited for; those of a `detached` job to the end."""

    def __init__(self, run_dir: str, node: str, apart: bool = False, detached: bool = False):
        self._run_dir, self._node = Path(run_dir), node
        self._apart, self._detached = apart, detached
        self._ended_at = float("inf")
        self._somebody_at = self._looked_at = self._heard_at = time.monotonic()
        self._read_at = self._spoke_at = -1
        self.run: dict[str, Any] = {}
        self._watched: dict[str, WatchedProcess] = {}
        self._is_replaced = False
        self._refresh()

    @property
    def first_node(self) -> str:
        """Where the run was started; its clock is the run's reference."""
        return str(self.run.get("node", ""))

    @property
    def is_first(self) -> bool:
        """Whether the run was started here: on this clock, which containers share, and in this
        directory."""
        return self.first_node == self._node and not self._apart

    def is_over(self) -> bool:
        if self.is_deleted():
            return True
        ended = self.run.get("end_real_ns") is not None
        if self._apart:
            now = time.monotonic()
            if ended:
                self._ended_at = min(self._ended_at, now)
            if now - self._looked_at >= _LOOK_EVERY_S:
                self._looked_at = now
                if self._traced_process_here():
                    self._somebody_at = now
            alone_s = now - self._somebody_at
            if not ended or self._detached:
                return alone_s > (SILENT_S if ended else _NOBODY_S)
            return alone_s > _LOOK_EVERY_S or now - self._ended_at > _LINGER_S
        if ended:
            return True
        if self.is_first:
            wrap, command = self._process("wrap_pid"), self._process("command_pid")
            return not (wrap.is_alive() or command.is_alive() or go_on(self._run_dir))
        return self._first_node_is_silent() and not self._traced_process_here()

    def is_deleted(self) -> bool:
        """Whether the run's directory is gone, or is another run's by now."""
        try:
            os.stat(self._run_dir)
        except OSError as error:  # else a network's disk is away for a moment
            return isinstance(error, FileNotFoundError | NotADirectoryError)
        self._refresh()
        return self._is_replaced

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
        told = map(told_in, (self._run_dir / PROCESS).glob("*.json"))
        here = (process.get("pid") for process in told if process.get("node") == self._node)
        return any(pid != os.getpid() and os.path.exists(f"/proc/{pid}") for pid in here)


def _made_by(run: dict[str, Any]) -> tuple[int, int] | None:
    """What tells a run from another one in a directory of the same name; None on a node apart
    before the run's own description has come."""
    pid, start_ns = run.get("wrap_pid"), run.get("start_monotonic_ns")
    return (pid, start_ns) if isinstance(pid, int) and isinstance(start_ns, int) else None


class WatchedProcess:
    """Whether a process still runs, whoever started it; a later one of its number is another."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = -1
        if pid > 0:
            with suppress(OSError):  # it has ended
                self._handle = os.pidfd_open(pid)

    def is_alive(self) -> bool:
        return self._handle >= 0 and not select.select([self._handle], [], [], 0)[0]
