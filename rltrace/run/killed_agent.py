"""An agent that was killed, by the OOM killer or by hand, and of which there is no other at the
end of the job (`agent_keeper`): it is said.

Without it no device is read.
"""

from __future__ import annotations

import json
from pathlib import Path

from rltrace.trace.clock import node_id
from rltrace.trace.liveness import began_at
from rltrace.trace.run_dir import (
    NODES,
    PROBLEMS,
    PROCESS,
    append_line,
    now_ns,
    read_run_json,
)

AGENT_KILLED = "agent-killed"


def agent_is_gone(run_dir: Path) -> bool:
    """Whether this node's agent has ended."""
    try:
        told = json.loads((run_dir / NODES / f"{node_id()}.json").read_text("utf-8"))
        return began_at(int(told["pid"])) is None
    except (OSError, ValueError, KeyError, TypeError):
        return False  # it has only begun


def note_killed_agent(run_dir: Path) -> str:
    """Of a run that is not over: writes down among its problems that this node's agent was killed.
    Returns what that means, or nothing where it lives. Errors: OSError, `RltraceError`."""
    if not agent_is_gone(run_dir):
        return ""
    run = read_run_json(str(run_dir))
    lacks = "its devices were not read any more"
    problem = {"what": AGENT_KILLED, "real_ns": now_ns(run), "target": node_id(), "detail": lacks}
    append_line(str(run_dir / PROBLEMS / f"{_who(run_dir)}.jsonl"), problem)
    return f"the agent of this node was killed before the job ended: since then {lacks}"


def _who(run_dir: Path) -> str:
    """The name of the agent's own files. What has another is not shipped."""
    pid = json.loads((run_dir / NODES / f"{node_id()}.json").read_text("utf-8"))["pid"]
    found = (run_dir / PROCESS).glob(f"*-{int(pid)}-*.json")
    return next((path.stem for path in sorted(found)), "agent")
