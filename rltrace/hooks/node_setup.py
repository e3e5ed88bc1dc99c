"""Sets a node up: its own run directory, its agent.

Where a node does not share the disk on which the run was made, its processes write to a directory
of the node's own, and its agent ships that to the run's URL. An agent must leave no trace in the
process that starts it: no child for the program's own `wait`, no open descriptor, no import of
`subprocess`. So a shell puts it into the background and ends at once: some two milliseconds, once a
node. Standard library only.
"""

from __future__ import annotations

import os
import stat
import sys
import time

from rltrace.trace.clock import node_id
from rltrace.trace.job_exceptions import contained
from rltrace.trace.run_dir import (
    APART_FILE,
    FOLDERS,
    RUN_FILE,
    RUN_VARIABLE,
    RunExistsError,
    write_first,
    write_json,
)
from rltrace.trace.safe_open import opened
from rltrace.trace.schema import SCHEMA_VERSION


def made_here(url: str) -> str:
    """What `SHIP_VARIABLE` says of a run made here."""
    return f"{node_id()} {os.uname().nodename} {url}"


def own_directory(run_dir: str, shipping: str, detached: bool) -> str:
    """A directory of the run on this node: at the same path, else in the folder for temporary
    files; `run_dir` where none can be made, or the run was deleted: then the recorder says so."""
    node, host, url = shipping.split(" ", 2)
    if (node, host) == (node_id(), os.uname().nodename):
        return run_dir
    own = f"{os.environ.get('TMPDIR', '/tmp')}/rltrace-{os.getuid()}/{os.path.basename(run_dir)}"
    for folder in (run_dir, own):
        with contained(OSError):
            _make(folder, node, url, detached)
            os.environ[RUN_VARIABLE] = folder
            return folder
    return run_dir


def _make(folder: str, node: str, url: str, detached: bool) -> None:
    """Makes the directory, whoever comes first; the others find it made."""
    parent = os.path.dirname(folder)
    os.makedirs(parent, mode=0o700, exist_ok=True)
    if os.path.basename(parent) == f"rltrace-{os.getuid()}":
        status = os.lstat(parent)  # others can write beside it
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise PermissionError(parent)
    for name in FOLDERS:
        os.makedirs(f"{folder}/{name}", exist_ok=True)
    if not os.path.exists(f"{folder}/{APART_FILE}"):
        write_json(f"{folder}/{APART_FILE}", {"url": url, "detached": detached})
    told = {
        "id": os.path.basename(folder),
        "node": node,
        "start_real_ns": time.time_ns(),
        "end_real_ns": None,
        "schema_version": SCHEMA_VERSION,
        "shipped_to": url,
    }
    with contained(RunExistsError):
        write_first(f"{folder}/{RUN_FILE}", told)  # until the agent has brought the run's own


_START = """
import sys
sys.path.append(sys.argv[2])
from rltrace.run.node.agent import main
main(sys.argv[1])
"""


def spawn_agent(run_dir: str, lock: str, python: str = "") -> bool:
    """Takes the node's lock and starts its agent, with `python` where that exists. False where
    another process was faster, or nothing can be written or started."""
    with contained(OSError, NotImplementedError):
        with opened(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL):
            pass
        if not os.access(python, os.X_OK):
            python = sys.executable
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        # -I: the agent is no part of the job, so nothing of the job's environment is to reach it.
        command = [python, "-I", "-c", _START, run_dir, package]
        own = ("RLTRACE_", "PYTHON")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
        with opened(os.devnull, os.O_RDWR) as null:
            shell = os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", '"$@" &', "sh", *command],
                environment,
                file_actions=[(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)],
                setsid=True,
                setsigmask=(),
            )
        os.waitpid(shell, 0)
        return True
    return False
