"""A job that does what a test tells it, with the real recorder in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_JOB = """
import json, sys, rltrace
rltrace.start(sys.argv[1])
print("ready", flush=True)
open_spans = []
for line in sys.stdin:
    what, *words = json.loads(line)
    if what == "begin":
        open_spans.append(rltrace.span(words[0]))
    elif what == "end":
        open_spans.pop().end()
    elif what == "step":
        rltrace.step(words[0])
    elif what == "sample":
        with rltrace.trajectory(words[0], group="g", version=words[1]) as t:
            t.finish("stop", response_tokens=10)
        rltrace.reward(words[0], words[2])
    elif what == "use":
        rltrace.use(words[0], "trained", version=words[1], tokens=10)
    print("done", flush=True)
rltrace.stop()
"""


class Job:
    """A job that does as it is told."""

    def __init__(self, out: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _JOB, str(out)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def does(self, *what: object) -> None:
        """Waits until it has."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        self._answer()

    def ends(self) -> None:
        self._process.communicate()

    def is_killed(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline()
