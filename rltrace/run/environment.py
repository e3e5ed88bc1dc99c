"""What a process has to find in its environment to be traced, and to bring its children in."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rltrace.adapters import find_adapters
from rltrace.hooks.boot import ADAPTERS_VARIABLE, HOOKS_VARIABLE, PYTHON_VARIABLE, SITE
from rltrace.trace.run_dir import RUN_VARIABLE


def traced_environment(run_dir: str, hooks: Sequence[str]) -> dict[str, str]:
    """This process's environment with the run in it. `hooks` are added to those of an outer run."""
    environment = dict(os.environ)
    environment[RUN_VARIABLE] = run_dir
    environment[PYTHON_VARIABLE] = sys.executable
    environment[ADAPTERS_VARIABLE] = ";".join(f"{k}={v}" for k, v in find_adapters().items())
    known = [h for h in environment.get(HOOKS_VARIABLE, "").split(";") if h]
    environment[HOOKS_VARIABLE] = ";".join([*known, *(h for h in hooks if h not in known)])
    path = environment.get("PYTHONPATH", "")
    if SITE not in path.split(os.pathsep):
        environment["PYTHONPATH"] = SITE + (os.pathsep + path if path else "")
    return environment
