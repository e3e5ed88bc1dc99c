"""Starting the agent of a node: one detached process, whoever comes first.

It must leave no trace in the process that starts it: no child to be reaped by the program's own
`wait`, no open descriptor, no import of `subprocess`. So a shell puts it into the background and
ends at once; that takes some two milliseconds, once a node.
"""

from __future__ import annotations

import os
import sys

from rltrace.trace.opened import opened
from rltrace.trace.outside import contained

_START = """
import sys
sys.path.append(sys.argv[2])
from rltrace.run.agent import main
main(sys.argv[1])
"""


def spawn_agent(run_dir: str, lock: str, python: str = "") -> bool:
    """Takes the node's lock and starts its agent. `python` is preferred to this interpreter where
    it exists. False when another process was faster, or nothing can be written or started."""
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
