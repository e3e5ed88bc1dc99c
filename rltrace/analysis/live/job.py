"""Whether the job of a run is going on, and if not, how it ended."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltrace.analysis.live.snapshot import (
    DELETED,
    ENDED,
    FAILED,
    KILLED,
    RUNNING,
    SILENT,
    STARTING,
    Job,
)
from rltrace.trace.reach import EVERYTHING, Reach, clock_time

SILENT_NS = 30 * 10**9


def job_of(
    path: Path,
    meta: Mapping[str, Any],
    gone: bool,
    alive: bool | None,
    begun: bool,
    last_sign_ns: int,
    now_ns: int,
    reach: Reach = EVERYTHING,
) -> Job:
    """The job of the run in `path`. `alive` is whether it lives (None: nobody here can tell),
    `begun` whether it has recorded anything, `last_sign_ns` when it last did (Unix ns), `reach`
    until when it is known where it was brought from a URL: it may have ended since."""
    started, ended, code = (meta.get(key) for key in ("start_real_ns", "end_real_ns", "exit_code"))
    since = started if isinstance(started, int) else now_ns
    code = code if isinstance(code, int) else None
    until = known_ns = min(now_ns, reach.until_ns or now_ns)
    silent = now_ns - last_sign_ns > SILENT_NS
    if reach.until_ns:  # what is shipped comes once a minute, or as seldom as its nodes say
        silent = len(reach.gone(now_ns)) == len(reach.nodes)
    if gone:
        state, sentence = DELETED, "the run's directory was deleted"
    elif isinstance(ended, int):
        wrapped = meta.get("wrap_pid") is not None
        state, sentence = _ended(code, bool(meta.get("signals")), wrapped)
        until = ended
    elif alive is False:
        state = KILLED
        pid = meta.get("command_pid", meta.get("wrap_pid"))
        sentence = f"killed: its command (pid {pid}) is gone"
        until = last_sign_ns or now_ns
    elif alive is None and silent:
        state = SILENT
        sentence = f"no sign of life for {(now_ns - max(last_sign_ns, since)) / 1e9:.0f} s"
    elif not begun:
        state, sentence = STARTING, "starting: nothing recorded yet"
    elif reach.until_ns:
        state, sentence = RUNNING, f"running at {clock_time(known_ns)}, the last that has come"
    else:
        state, sentence = RUNNING, "running"
    return Job(
        id=str(meta.get("id") or path.name),
        path=str(path),
        command=shlex.join(str(word) for word in meta.get("command") or ()),
        framework=str(meta.get("framework") or ""),
        state=state,
        sentence=sentence,
        exit_code=code,
        since_ns=since,
        until_ns=max(until, since),
    )


def _ended(code: int | None, signalled: bool, wrapped: bool) -> tuple[str, str]:
    if code is None and wrapped:
        return KILLED, "wrap was killed: nobody saw how the job ended"
    if not code:  # what is imported has none
        return ENDED, "ended"
    if code > 128:
        name = _signal(code - 128)
        if signalled:
            return ENDED, f"ended from outside ({name})"
        return KILLED, f"killed by {name}" + (" (kill -9)" if code == 128 + signal.SIGKILL else "")
    return (ENDED, "ended from outside") if signalled else (FAILED, f"failed with exit code {code}")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
